"""What a model is made of, from its ``config.json`` alone: parameters, and the layers that FSDP2
would gather.

Runs in the driver; standard library only, so that nothing of a model's repository is run. Knows
dense decoder models with grouped-query attention and a gated MLP, which the configurations of
Llama, Qwen2, Qwen3 and Mistral describe; of others nothing is said. Biases are left out. A worker
reads the same from the model itself, see :mod:`autotune.verl_bridge.model_layers`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.models.overlap_plan import Layer

KERNELS_PER_MODULE = 4
"""Kernels that one forward pass launches for each module without children: in a decoder layer of
transformers in eager mode, with attention, rotation and residuals (a test counts them)."""
_MODULES_PER_LAYER = 10
"""Four projections of attention, three of the MLP, its activation, two norms."""
_HEAD_NORMS = ("qwen3",)
"""Kinds whose attention normalises queries and keys."""

_NEEDED = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
)
_GATED = ("silu", "swish")
"""Activations of gated MLPs; others are those of plain ones as a rule."""
_MIXTURES = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a dense decoder model."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_key_value_heads: int
    head_size: int
    vocabulary_size: int
    is_tied: bool
    """Whether input embedding and output projection are one matrix."""
    has_head_norms: bool

    @staticmethod
    def of(config: Mapping[str, object]) -> "ModelShape | None":
        """Read a ``config.json``; None for an unknown architecture."""
        values = {name: config.get(name) for name in _NEEDED}
        if any(not isinstance(value, int) for value in values.values()):
            return None
        if any(config.get(name) for name in _MIXTURES):
            return None
        if config.get("hidden_act", _GATED[0]) not in _GATED:
            return None
        hidden, inner, layers, heads, vocabulary = (_integer(values, name) for name in _NEEDED)
        groups, head = config.get("num_key_value_heads"), config.get("head_dim")
        return ModelShape(
            hidden_size=hidden,
            intermediate_size=inner,
            num_layers=layers,
            num_heads=heads,
            num_key_value_heads=groups if isinstance(groups, int) else heads,
            head_size=head if isinstance(head, int) else hidden // heads,
            vocabulary_size=vocabulary,
            is_tied=bool(config.get("tie_word_embeddings")),
            has_head_norms=config.get("model_type") in _HEAD_NORMS,
        )

    @property
    def layer_matrices(self) -> int:
        """Parameters of one layer's weight matrices."""
        heads = self.num_heads + self.num_key_value_heads
        return self.hidden_size * (2 * heads * self.head_size + 3 * self.intermediate_size)

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer, norms included."""
        head_norms = 2 * self.head_size if self.has_head_norms else 0
        return self.layer_matrices + 2 * self.hidden_size + head_norms

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the input embedding; the output projection has as many."""
        return self.vocabulary_size * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model."""
        embeddings = self.embedding_parameters * (1 if self.is_tied else 2)
        return embeddings + self.num_layers * self.layer_parameters + self.hidden_size

    @property
    def num_tensors(self) -> int:
        """Entries of the model's state; a tied matrix has two."""
        return self.num_layers * (11 if self.has_head_norms else 9) + 3


def layers_of(
    shape: ModelShape,
    *,
    parameter_bytes: int,
    gradient_bytes: int,
    sequence_tokens: int,
    has_head: bool,
) -> tuple[Layer, list[Layer]]:
    """Return what FSDP2's units are made of as verl wraps a model: the root, then each module.

    Args:
        shape: The model.
        parameter_bytes: Of one number in an all-gather.
        gradient_bytes: Of one number in a reduce-scatter; 0 where nothing is trained.
        sequence_tokens: Tokens that attention sees at once; 0: attention is not counted.
        has_head: Whether there is an output projection onto the vocabulary; a critic has none.
    """

    def module(
        name: str, *, parameters: int, products: int, num_modules: int, attention: float = 0.0
    ) -> Layer:
        return Layer(
            name=name,
            stack=name.rpartition(".")[0] if name.endswith(tuple("0123456789")) else "",
            parameter_bytes=parameters * parameter_bytes,
            gradient_bytes=parameters * gradient_bytes,
            forward_flops_per_token=2.0 * products + attention,
            backward_flops_per_token=4.0 * products + 2 * attention,
            num_kernels=KERNELS_PER_MODULE * num_modules,
        )

    # Two products, 2 operations each, over half of the sequence on average.
    attention = 2.0 * shape.num_heads * shape.head_size * sequence_tokens
    layers = [
        module(
            f"model.layers.{index}",
            parameters=shape.layer_parameters,
            products=shape.layer_matrices,
            num_modules=_MODULES_PER_LAYER + 2 * shape.has_head_norms,
            attention=attention,
        )
        for index in range(shape.num_layers)
    ]
    embedding = shape.embedding_parameters
    if shape.is_tied:
        root = module(
            "",
            parameters=embedding + shape.hidden_size,
            products=embedding if has_head else 0,
            # The norm, the rotation, the embedding, the projection.
            num_modules=4 if has_head else 3,
        )
        return root, layers
    first = module("model.embed_tokens", parameters=embedding, products=0, num_modules=1)
    last = module("lm_head", parameters=embedding, products=embedding, num_modules=1)
    root = module("", parameters=shape.hidden_size, products=0, num_modules=2)
    return root, [first, *layers, last] if has_head else [first, *layers]


def _integer(values: Mapping[str, object], name: str) -> int:
    value = values[name]
    assert isinstance(value, int), f"{name} is {value!r}"
    return value
