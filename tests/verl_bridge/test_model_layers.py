"""Bytes, operations and kernels of a little Qwen2, counted by hand.

Hidden 32, intermediate 64, 4 heads of 8, 2 key-value heads, vocabulary 64. Matrices of one layer:
2 x 32 x 32 (query, output) + 2 x 32 x 16 (key, value) + 3 x 32 x 64 = 9,216 weights; with biases
(32 + 16 + 16) and two norms (2 x 32) 9,344 parameters.
"""

from typing import Any

import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.models.model_shape import KERNELS_PER_MODULE
from autotune.models.overlap_plan import Layer
from autotune.verl_bridge.model_layers import read_layers

MATRICES, PARAMETERS, EMBEDDING = 9_216, 9_344, 64 * 32
FP32 = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32)
BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def model(*, tied: bool = True, num_layers: int = 2) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
    )
    config._attn_implementation = "sdpa"
    return Qwen2ForCausalLM(config)


def read(
    whole: Any, *, policy: MixedPrecisionPolicy = FP32, sequence_tokens: int = 0, names: str = ""
) -> tuple[Layer, list[Layer]]:
    wanted = names.split() or [f"model.layers.{index}" for index in range(2)]
    targets = {name: whole.get_submodule(name) for name in wanted}
    return read_layers(whole, targets, policy=policy, sequence_tokens=sequence_tokens)


def test_a_layer_holds_its_parameters_and_multiplies_its_matrices() -> None:
    layer = read(model())[1][0]
    assert (layer.name, layer.stack) == ("model.layers.0", "model.layers")
    assert layer.parameter_bytes == layer.gradient_bytes == 4 * PARAMETERS
    assert layer.forward_flops_per_token == 2 * MATRICES
    assert layer.backward_flops_per_token == 4 * MATRICES


def test_parameters_and_gradients_have_the_dtypes_that_are_communicated() -> None:
    layer = read(model(), policy=BF16)[1][0]
    assert (layer.parameter_bytes, layer.gradient_bytes) == (2 * PARAMETERS, 4 * PARAMETERS)


def test_attention_grows_with_the_sequence() -> None:
    # causal: 2 products x 2 operations x 32 x half of 100 tokens
    layer = read(model(), sequence_tokens=100)[1][0]
    assert layer.forward_flops_per_token == 2 * MATRICES + 2 * 32 * 100
    assert layer.backward_flops_per_token == 4 * MATRICES + 4 * 32 * 100


def test_tied_embeddings_are_held_once_by_the_root_and_multiplied_as_its_output() -> None:
    root, _ = read(model(tied=True))
    # the final norm has 32 weights
    assert root.parameter_bytes == 4 * (EMBEDDING + 32)
    assert root.forward_flops_per_token == 2 * EMBEDDING and root.stack == ""


def test_untied_embeddings_are_units_of_their_own() -> None:
    names = "model.embed_tokens model.layers.0 model.layers.1 lm_head"
    root, (embedding, *_, head) = read(model(tied=False), names=names)
    assert embedding.forward_flops_per_token == 0.0
    assert head.forward_flops_per_token == 2 * EMBEDDING and head.stack == ""
    assert root.parameter_bytes == 4 * 32


def test_frozen_weights_have_no_gradients_to_reduce_or_compute() -> None:
    whole = model()
    whole.model.layers[0].requires_grad_(False)
    layer = read(whole)[1][0]
    assert layer.gradient_bytes == 0 and layer.parameter_bytes == 4 * PARAMETERS
    # the gradient of the input alone
    assert layer.backward_flops_per_token == 2 * MATRICES


def test_a_token_passes_some_of_a_mixtures_experts() -> None:
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    config = Qwen2MoeConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        num_experts=8,
        num_experts_per_tok=2,
    )
    whole = Qwen2MoeForCausalLM(config)
    layer = read(whole)[1][0]
    experts = 8 * 3 * 32 * 16
    all_matrices = sum(
        weight.numel() for weight in whole.model.layers[0].parameters() if weight.dim() > 1
    )
    assert layer.forward_flops_per_token == 2 * (all_matrices - experts * 3 / 4)


class _CountKernels(TorchDispatchMode):
    """Counts the operations that compute something new."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        is_view = any(alias.alias_info is not None for alias in func._schema.returns)
        self.count += not is_view
        return func(*args, **(kwargs or {}))


def test_the_number_of_kernels_is_near_what_a_decoder_layer_launches() -> None:
    counts = []
    for num_layers in (1, 3):
        whole = model(num_layers=num_layers)
        with torch.no_grad(), _CountKernels() as kernels:
            whole(input_ids=torch.zeros(1, 4, dtype=torch.int64), use_cache=False)
        counts.append(kernels.count)
    in_a_layer = (counts[1] - counts[0]) / 2
    layer = read(model())[1][0]
    assert layer.num_kernels % KERNELS_PER_MODULE == 0
    assert layer.num_kernels == pytest.approx(in_a_layer, rel=0.25)
