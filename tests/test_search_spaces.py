"""Every search space that ships loads, with verl's real configuration, and its rules hold."""

import functools
import json
import runpy
from pathlib import Path

import pytest

from autotune.config import Sweep, load_sweep
from autotune.errors import BadInputError
from autotune.knobs import KNOBS, Transition
from autotune.models.links import Scenario
from autotune.verl_bridge import job
from autotune.verl_bridge.overrides import leaves

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "search_spaces"
SCENARIOS = [f"qwen2.5-7b_ppo_8xgpu_{scenario.value}" for scenario in Scenario]
RANDOM = {
    "qwen2.5-0.5b_ppo_2xh200": "0.5B",
    "qwen2.5-1.5b_ppo_2xh200": "1.5B",
    "qwen2.5-7b_ppo_8xh200": "7B",
}
"""Search spaces of random models -> the model's size."""
CPU = ["quickstart_cpu", "smollm2_135m_cpu"]
ONE_GPU = "qwen2.5-0.5b_grpo_1xh200"
PPO = [*SCENARIOS, *RANDOM]


class Files:
    """A folder in which every path of the search spaces exists; models are their configurations."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        sizes = runpy.run_path(str(ROOT / "scripts" / "make_demo_assets.py"))["SIZES"]
        self._add_data("data/gsm8k")
        self._add_model("Qwen/Qwen2.5-7B-Instruct", sizes["7B"])
        for name, size in {"tiny": "tiny", "smollm2": "tiny"}.items():
            self._add_demo(name, sizes[size])
        for size in RANDOM.values():
            self._add_demo(f"qwen2.5-{size.lower()}", sizes[size])

    def _add_demo(self, name: str, shape: object) -> None:
        self._add_data(f"demo/{name}")
        (self._folder / "demo" / name / "reward.py").touch()
        self._add_model(f"demo/{name}/model", shape)

    def _add_data(self, name: str) -> None:
        (self._folder / name).mkdir(parents=True)
        for split in ("train", "test"):
            (self._folder / name / f"{split}.parquet").touch()

    def _add_model(self, name: str, shape: object) -> None:
        (self._folder / name).mkdir(parents=True)
        facts = {
            "num_attention_heads": getattr(shape, "num_heads"),
            "num_key_value_heads": getattr(shape, "num_key_value_heads"),
            "max_position_embeddings": 32768,
        }
        (self._folder / name / "config.json").write_text(json.dumps(facts))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    Files(folder)
    return folder


@pytest.fixture
def here(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)


@functools.cache
def load(name: str) -> Sweep:
    return load_sweep(FOLDER / f"{name}.yaml")


def test_no_search_space_is_untested() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted([*PPO, *CPU, ONE_GPU])


@pytest.mark.parametrize("name", [*PPO, *CPU, ONE_GPU])
def test_it_loads_bears_its_files_name_and_has_valid_settings(name: str, here: None) -> None:
    sweep = load(name)
    assert sweep.config.name == name
    assert sweep.summary.num_valid > 0.5 * sweep.summary.num_checked


@pytest.mark.parametrize("name", PPO)
def test_it_is_kl_regularised_ppo_on_fsdp2_with_vllm(name: str, here: None) -> None:
    base = leaves(load(name).base_config)
    strategies = [base[f"{role}.strategy"] for role in (job.ACTOR, job.REF, "critic")]
    assert strategies == ["fsdp2"] * 3
    assert job.has_critic(base) and job.has_reference_engine(base)
    assert base[f"{job.ROLLOUT}.name"] == "vllm"
    assert base[f"{job.ACTOR}.use_kl_loss"] is True
    assert base[f"{job.ACTOR}.kl_loss_coef"] == base["algorithm.kl_ctrl.kl_coef"] == 0.001
    assert base["algorithm.kl_ctrl.target_kl"] == 0.02
    assert base[f"{job.ACTOR}.clip_ratio"] == 0.2


def test_one_gpu_has_no_knob_of_communication(here: None) -> None:
    sweep = load(ONE_GPU)
    base = leaves(sweep.base_config)
    assert sweep.config.resources.num_ranks == 1
    assert base["algorithm.adv_estimator"] == "grpo" and not job.has_critic(base)
    assert base[f"{job.ROLLOUT}.name"] == "vllm"
    assert base[f"{job.ACTOR}.use_kl_loss"] is True
    groups = {KNOBS[name].transition for name in sweep.config.knobs}
    assert groups == {Transition.HOT, Transition.ENGINE, Transition.ROLLOUT}
    assert [limit.metric for limit in sweep.config.constraints] == ["kl_std", "peak_memory_ratio"]


@pytest.mark.parametrize(
    ("name", "micro", "scoring"), list(zip(SCENARIOS, (4, 8, 16), (4, 8, 4), strict=True))
)
def test_a_scenario_starts_from_its_own_micro_batches(
    name: str, micro: int, scoring: int, here: None
) -> None:
    sweep = load(name)
    baseline = sweep.space.baseline()
    assert baseline["ppo_micro_batch_size_per_gpu"] == micro
    assert baseline["log_prob_micro_batch_size_per_gpu"] == scoring
    assert baseline["offload_policy"] is True
    assert baseline["rollout_gpu_memory_utilization"] == 0.4
    assert leaves(sweep.base_config)["data.train_batch_size"] == 2048


@pytest.mark.parametrize("name", PPO)
def test_no_knob_is_one_of_the_algorithms(name: str, here: None) -> None:
    assert not {"kl_coef", "target_kl", "clip_ratio"} & set(load(name).config.knobs)


@pytest.mark.parametrize("name", PPO)
def test_a_baseline_is_one_of_the_settings_that_are_searched(name: str, here: None) -> None:
    sweep = load(name)
    for knob, value in sweep.space.baseline().items():
        assert value in (sweep.config.knobs[knob].choices or []), knob


def test_tensor_parallelism_that_the_models_heads_refuse_is_refused(here: None) -> None:
    # 28 heads on 8 ranks
    with pytest.raises(BadInputError, match="rollout_tensor_model_parallel_size|num_attention"):
        load_sweep(
            FOLDER / f"{SCENARIOS[0]}.yaml",
            ["knobs.rollout_tensor_model_parallel_size={choices: [8]}"],
        )


@pytest.mark.parametrize("name", PPO)
def test_what_is_tried_first_is_valid_and_new(name: str, here: None) -> None:
    sweep = load(name)
    baseline = sweep.space.baseline()
    assert sweep.config.search.first
    for change in sweep.config.search.first:
        setting = {**baseline, **change}
        assert sweep.space.is_valid(setting), change
        assert setting != baseline
        for knob, value in change.items():
            assert value in (sweep.config.knobs[knob].choices or []), knob
