"""The job whose settings the tests of the sampler and the searcher look for."""

from autotune.verl_bridge.job import ACTOR, ROLLOUT

# 8 prompts x 4 responses on 2 ranks: 16 sequences a rank, so 3 and 6 are no micro-batch sizes.
SMALL_JOB = (
    "algorithm.adv_estimator=grpo",
    "data.train_batch_size=8",
    "actor_rollout_ref.model.path=org/model",
    f"{ACTOR}.strategy=fsdp2",
    f"{ACTOR}.ppo_mini_batch_size=8",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu=2",
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=2",
    f"{ROLLOUT}.name=hf",
    f"{ROLLOUT}.tensor_model_parallel_size=1",
    f"{ROLLOUT}.n=4",
    "trainer.device=cpu",
    "trainer.n_gpus_per_node=2",
)
