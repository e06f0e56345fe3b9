"""The quickstart's job with a critic, for tests that need both training engines."""

from typing import Any

import yaml

_DROPPED = ("algorithm.adv_estimator", "actor_rollout_ref.actor.use_kl_loss")
_WITH_CRITIC = (
    "algorithm.adv_estimator=gae",
    "algorithm.use_kl_in_reward=true",
    "critic.model.path=demo/tiny/model",
    "+critic.model.override_config.attn_implementation=sdpa",
    "critic.model.use_remove_padding=true",
    "critic.ppo_micro_batch_size_per_gpu=2",
    "+critic.fsdp.mixed_precision.param_dtype=fp32",
    "critic.fsdp.use_torch_compile=false",
    "critic.strategy=fsdp2",
)


def with_critic(quickstart: str) -> dict[str, Any]:
    """Return the quickstart's sweep file with PPO on GAE and KL in the reward instead of GRPO."""
    content: dict[str, Any] = yaml.safe_load(quickstart)
    kept = [one for one in content["base"]["overrides"] if not one.startswith(_DROPPED)]
    content["base"]["overrides"] = [*kept, *_WITH_CRITIC]
    return content
