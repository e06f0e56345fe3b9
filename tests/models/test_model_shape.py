"""Models from their configuration alone: known sizes, and the layers that the model itself has."""

from typing import Any

import pytest
import torch
from qwen_shapes import QWEN_05B, QWEN_7B
from torch.distributed.fsdp import MixedPrecisionPolicy

from autotune.models.model_shape import ModelShape, layers_of
from autotune.models.overlap_plan import Layer
from autotune.verl_bridge.model_layers import read_layers

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
}
BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


@pytest.mark.parametrize(
    ("config", "billions"), [(QWEN_05B, 0.494), (QWEN_7B, 7.616)], ids=["0.5B", "7B"]
)
def test_the_parameters_of_known_models_are_counted(
    config: dict[str, Any], billions: float
) -> None:
    shape = ModelShape.of(config)
    assert shape is not None and shape.num_parameters / 1e9 == pytest.approx(billions, rel=0.001)


@pytest.mark.parametrize(
    "config",
    [{"hidden_size": 64}, {**QWEN_7B, "num_experts": 8}, {**QWEN_7B, "hidden_act": "gelu"}],
    ids=["unknown", "mixture", "plain MLP"],
)
def test_of_other_architectures_nothing_is_said(config: dict[str, Any]) -> None:
    assert ModelShape.of(config) is None


def whole_model(kind: str, *, tied: bool) -> Any:
    """A model without memory, in which everything but its values is real."""
    from transformers import AutoConfig, AutoModelForCausalLM

    heads = {"head_dim": 8} if kind == "qwen3" else {}
    config = AutoConfig.for_model(kind, tie_word_embeddings=tied, **SMALL, **heads)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def as_wrapped(model: Any, *, tied: bool) -> dict[str, Any]:
    """The modules that verl wraps one by one."""
    names = [f"model.layers.{index}" for index in range(2)]
    if not tied:
        names = ["model.embed_tokens", *names, "lm_head"]
    return {name: model.get_submodule(name) for name in names}


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral"])
def test_the_layers_are_those_of_the_model_itself(kind: str, tied: bool) -> None:
    model = whole_model(kind, tied=tied)
    root, layers = read_layers(
        model, as_wrapped(model, tied=tied), policy=BF16, sequence_tokens=100
    )
    shape = ModelShape.of(model.config.to_dict())
    assert shape is not None
    found: tuple[Layer, list[Layer]] = layers_of(
        shape, parameter_bytes=2, gradient_bytes=4, sequence_tokens=100, has_head=True
    )
    assert found == (root, layers)
    assert shape.num_parameters == sum(each.numel() for each in model.parameters())
    assert shape.num_tensors == len(model.state_dict())


def test_biases_alone_are_missing_of_a_qwen2() -> None:
    model = whole_model("qwen2", tied=True)
    shape = ModelShape.of(model.config.to_dict())
    assert shape is not None
    # query 32, key and value 16 each, in both layers
    biases = 2 * (32 + 16 + 16)
    assert sum(each.numel() for each in model.parameters()) == shape.num_parameters + biases


def test_a_critic_has_no_output_projection() -> None:
    shape = ModelShape.of({**SMALL, "tie_word_embeddings": False})
    assert shape is not None
    _, layers = layers_of(
        shape, parameter_bytes=2, gradient_bytes=4, sequence_tokens=0, has_head=False
    )
    assert [layer.name for layer in layers] == [
        "model.embed_tokens",
        "model.layers.0",
        "model.layers.1",
    ]
