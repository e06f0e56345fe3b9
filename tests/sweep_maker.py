"""Sweep folders as `autotune sweep` leaves them: a PPO job on eight GPUs whose speed, memory and
communication follow from the settings by a few plausible rules, with noise from a seed.

Everything is written through the real store; nothing here is read by the package.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import yaml

from autotune.claim import claim_line
from autotune.config import to_yaml
from autotune.knobs import ROLLOUT_KNOBS, KnobValue
from autotune.objective import (
    StepKind,
    StepRecord,
    TrialRecord,
    TrialState,
    best_feasible,
    evaluate,
)
from autotune.settings import (
    BaseJobConfig,
    ConstraintConfig,
    DomainConfig,
    ObjectiveConfig,
    ResourcesConfig,
    SearchConfig,
    SweepConfig,
    TrialConfig,
)
from autotune.store import BEST_FILE, CONFIG_FILE, LOG_FOLDER, VERSIONS_FILE, SweepStore
from autotune.trial_metrics import summarise
from autotune.verl_bridge.step_report import replayed, update_only_metrics

Setting = dict[str, KnobValue]

MICRO, SCORING = "ppo_micro_batch_size_per_gpu", "log_prob_micro_batch_size_per_gpu"
RESHARD, CHECKPOINTING = "reshard_after_forward", "enable_gradient_checkpointing"
MEMORY, EAGER = "rollout_gpu_memory_utilization", "rollout_enforce_eager"
THROUGHPUT = "throughput_tokens_per_s_per_gpu"
UPDATE_ONLY_THROUGHPUT = "update_only_tokens_per_s_per_gpu"
BASELINE: Setting = {
    MICRO: 4,
    SCORING: 4,
    RESHARD: True,
    CHECKPOINTING: True,
    MEMORY: 0.4,
    EAGER: True,
}
CHOICES: dict[str, list[KnobValue]] = {
    MICRO: [1, 2, 4, 8, 16, 32, 64],
    SCORING: [2, 4, 8, 16, 32, 64],
    RESHARD: [True, False],
    CHECKPOINTING: [True, False],
    MEMORY: [0.3, 0.4, 0.5, 0.6, 0.7],
    EAGER: [True, False],
}
NUM_RANKS = 8
STEP_TOKENS = 256 * 768 * 8
BEGIN = datetime(2026, 3, 1, 8, 0, tzinfo=timezone.utc)
LOG = """\
(WorkerDict pid=11) loading the model\r 50 %\r 100 %
\x1b[36m(WorkerDict pid=11)\x1b[0m step:1 - perf/throughput:1500.0
the last line of the job
"""


@dataclass(frozen=True, kw_only=True)
class SweepSpec:
    """What kind of sweep to make."""

    name: str = "qwen2.5-7b_ppo_8xh100"
    num_trials: int = 30
    """Trials that are there."""
    budget: int = 30
    max_concurrent: int = 1
    seed: int = 1
    limits: tuple[tuple[str, float], ...] = (
        ("kl_std", 1e-4),
        ("exposed_comm_ratio", 0.2),
        ("peak_memory_ratio", 0.9),
    )
    profiled_steps: int = 1
    with_best: bool = True
    device: str = "gpu"
    fidelity: str = "full"
    """With ``update``, the knobs of training alone are swept, and steps replay their rollout."""


def make_sweep(folder: Path, spec: SweepSpec) -> SweepStore:
    """Write a sweep's folder below ``folder`` and return its store."""
    store = SweepStore(folder / spec.name)
    config = make_config(spec, folder)
    random_numbers = random.Random(spec.seed)
    with store.locked():
        store.write(CONFIG_FILE, to_yaml(config))
        run = {
            "started_at": BEGIN.isoformat(),
            "versions": {"python": "3.12.4", "verl": "0.9.1"},
        }
        store.write(VERSIONS_FILE, yaml.safe_dump([run]))
        lanes = [BEGIN] * spec.max_concurrent
        for number in range(spec.num_trials):
            setting = dict(BASELINE) if number == 0 else _draw(random_numbers)
            lane = lanes.index(min(lanes))
            record = run_trial(store, number, setting, config, lanes[lane], random_numbers)
            lanes[lane] = datetime.fromisoformat(record.ended_at)
        best = best_feasible(store.read_trials(), config.objective.metric)
        if spec.with_best and best is not None and best.number != 0:
            claim = claim_line(
                sweep=spec.name,
                trial=best.number,
                objective=config.objective.metric,
                proven=False,
                gain_ratio=None,
            )
            store.write(BEST_FILE, f"{claim}\ndefaults: [ppo_trainer, _self_]\n")
    (store.folder / LOG_FOLDER).mkdir(exist_ok=True)
    (store.folder / LOG_FOLDER / "trial_0000.log").write_text(LOG)
    return store


def make_config(spec: SweepSpec, folder: Path) -> SweepConfig:
    """Return the sweep file of a made sweep."""
    return SweepConfig(
        name=spec.name,
        base=BaseJobConfig(
            config_name="ppo_trainer",
            overrides=["data.train_batch_size=2048", "actor_rollout_ref.model.path=Qwen2.5-7B"],
        ),
        resources=ResourcesConfig(nodes=1, ranks_per_node=NUM_RANKS, device=spec.device),
        knobs={
            name: DomainConfig(choices=list(values))
            for name, values in CHOICES.items()
            if spec.fidelity == "full" or name not in ROLLOUT_KNOBS
        },
        trial=TrialConfig(
            warmup_steps=1,
            measured_steps=4,
            profiled_steps=spec.profiled_steps,
            seed=1,
            startup_timeout_s=600,
            step_timeout_s=600,
            fidelity=spec.fidelity,
        ),
        search=SearchConfig(
            sampler="tpe",
            num_trials=spec.budget,
            max_concurrent=spec.max_concurrent,
            seed=1,
            num_startup_trials=5,
        ),
        objective=ObjectiveConfig(
            metric=THROUGHPUT if spec.fidelity == "full" else UPDATE_ONLY_THROUGHPUT
        ),
        constraints=[ConstraintConfig(metric=name, max=limit) for name, limit in spec.limits],
        output_dir=str(folder),
    )


def run_trial(
    store: SweepStore,
    number: int,
    setting: Setting,
    config: SweepConfig,
    started: datetime,
    random_numbers: random.Random,
) -> TrialRecord:
    """Write a trial's steps and record, as the trial actor and the searcher would."""
    state, cause = _fate(setting, random_numbers)
    num_steps = config.trial.warmup_steps + config.trial.measured_steps
    kinds = [StepKind.WARMUP] + [StepKind.MEASURED] * config.trial.measured_steps
    kinds += [StepKind.PROFILED] * config.trial.profiled_steps
    steps = [
        _step(number, index, kind, setting, random_numbers)
        for index, kind in enumerate(kinds if state is TrialState.COMPLETE else [], start=1)
    ]
    if config.trial.replays_rollout:
        steps = [_replayed(step) for step in steps]
    for step in steps:
        store.append_step(step)
    startup_s = random_numbers.uniform(150, 190)
    wall_s = startup_s + (num_steps * _step_s(setting) * 1.2 if steps else 30)
    own = summarise(
        steps, startup_s=startup_s if steps else None, gpu_seconds=wall_s * NUM_RANKS
    )
    violations, kept = evaluate(own.metrics, config.constraints)
    overrides = _overrides(setting)
    setting = {name: value for name, value in setting.items() if name in config.knobs}
    record = TrialRecord(
        number=number,
        state=state,
        params=setting,
        setting=setting,
        overrides=overrides,
        metrics=own.metrics,
        absent=own.absent,
        intervals=own.intervals,
        violations=violations,
        feasible=kept and state is TrialState.COMPLETE,
        cause=cause,
        started_at=started.isoformat(timespec="seconds"),
        ended_at=(started + timedelta(seconds=wall_s)).isoformat(timespec="seconds"),
        retries=0,
    )
    store.append_trial(record)
    return record


def replace_trials(store: SweepStore, records: Sequence[TrialRecord], **changes: Any) -> None:
    """Write records again with other values; the last line of a number counts."""
    with store.locked():
        for record in records:
            store.append_trial(replace(record, **changes))


def _draw(random_numbers: random.Random) -> Setting:
    return {name: random_numbers.choice(values) for name, values in CHOICES.items()}


def _number(setting: Setting, knob: str) -> float:
    value = setting[knob]
    assert isinstance(value, int | float)
    return float(value)


def _memory(setting: Setting) -> float:
    activations = _number(setting, MICRO) * (0.003 if setting[CHECKPOINTING] else 0.011)
    scoring = _number(setting, SCORING) * 0.002
    held = 0.0 if setting[RESHARD] else 0.12
    return 0.12 + _number(setting, MEMORY) * 0.8 + activations + scoring + held


def _phases(setting: Setting) -> dict[str, float]:
    """Seconds of each phase."""
    micro, scoring = _number(setting, MICRO), _number(setting, SCORING)
    gen = (34 if setting[EAGER] else 27) * (0.75 + 0.1 / _number(setting, MEMORY))
    recompute = 1.3 if setting[CHECKPOINTING] else 1.0
    return {
        "gen": gen,
        "old_log_prob": 6 + 30 / scoring,
        "ref": 5 + 30 / scoring,
        "adv": 0.4,
        "update_actor": recompute * (22 + 90 / micro + 0.08 * micro),
        "update_weights": 2.0,
    }


def _step_s(setting: Setting) -> float:
    return sum(_phases(setting).values()) + 1.5


def _fate(setting: Setting, random_numbers: random.Random) -> tuple[TrialState, str]:
    if _memory(setting) > 1.02:
        return TrialState.OUT_OF_MEMORY, "OutOfMemoryError: CUDA out of memory, rank 3"
    chance = random_numbers.random()
    if chance > 0.985 and setting != BASELINE:
        return TrialState.HANG, "the job finished no step for 600 s"
    if chance > 0.97 and setting != BASELINE:
        return TrialState.CRASH, "RuntimeError: NCCL error: unhandled system error"
    return TrialState.COMPLETE, ""


def _step(
    number: int, index: int, kind: StepKind, setting: Setting, random_numbers: random.Random
) -> StepRecord:
    slow = 1.5 if kind is StepKind.WARMUP else 1.2 if kind is StepKind.PROFILED else 1.0
    noise = random_numbers.gauss(1.0, 0.02) * slow
    phases = {name: seconds * noise for name, seconds in _phases(setting).items()}
    step_s = _step_s(setting) * noise
    scatter = 2e-6 * (1 + abs(_number(setting, MICRO) - _number(setting, SCORING)) ** 1.3)
    metrics: dict[str, Any] = {
        "perf/throughput": STEP_TOKENS / step_s / NUM_RANKS,
        "timing_s/step": step_s,
        **{f"timing_s/{name}": seconds for name, seconds in phases.items()},
        "perf/mfu/actor": 9.0 / phases["update_actor"],
        "critic/score/mean": 0.4 + random_numbers.gauss(0, 0.01),
        "actor/kl_loss": 0.021,
        "actor/loss": 0.1,
        "autotune/kl_per_rank": [random_numbers.gauss(0, scatter) for _ in range(NUM_RANKS)],
        "autotune/peak_memory_ratio": min(0.999, _memory(setting)),
    }
    if kind is StepKind.PROFILED:
        exposed = (0.04 + 0.5 / _number(setting, MICRO) ** 0.7) * (0.8 if setting[RESHARD] else 0.6)
        exposed *= random_numbers.gauss(1.0, 0.05)
        metrics |= {
            "autotune/exposed_comm_ratio": exposed,
            "autotune/exposed_wait_ratio": 0.02,
            "autotune/comm_ratio": exposed + 0.1,
            "autotune/comm_overlap_ratio": 0.1 / (exposed + 0.1),
            "autotune/comm_to_compute_ratio": exposed + 0.2,
        }
    return StepRecord(number=number, attempt=0, step=index, kind=kind, metrics=metrics)


def _replayed(step: StepRecord) -> StepRecord:
    """A step as a job reports it that replays its rollout."""
    verls = {name: v for name, v in step.metrics.items() if isinstance(v, float)}
    left, absent = replayed(verls, step.step)
    own = update_only_metrics({**verls, "perf/total_num_tokens": STEP_TOKENS}, NUM_RANKS)
    kept = {name: v for name, v in step.metrics.items() if name not in verls}
    return replace(step, metrics={**left, **kept, **own}, absent=absent)


def _overrides(setting: Setting) -> list[str]:
    return [
        f"actor_rollout_ref.actor.{name}={str(value).lower()}"
        for name, value in setting.items()
        if value != BASELINE[name]
    ]
