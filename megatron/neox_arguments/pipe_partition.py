"""Which layers each stage of a pipeline holds.

The list of layers is that of :mod:`megatron.model.layout`: the embedding, a function, L transformer
layers, a function, the final norm, the head. A stage holds consecutive ones, at least one of them with
weights. ``pipe_partition_method`` says what is to be shared evenly:

- ``parameters``: weights;
- ``uniform``: entries of the list;
- ``type:REGEX``: the layers whose class in GPT-NeoX the expression finds (it searches, capitals do not
  matter), such as ``type:transformer|mlp``. Functions are no classes: they count for nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import accumulate

from megatron.neox_arguments.sections.model import ModelArgs

# What GPT-NeoX calls the layers' classes.
_EMBEDDING, _BLOCK = "EmbeddingPipe", "ParallelTransformerLayerPipe"
_NORM, _HEAD = "NormPipe", "ParallelLinearPipe"
_TYPE = "type:"

_Cost = Callable[[int, int], tuple[float, float]]
_Join = Callable[[tuple[float, float], tuple[float, float]], tuple[float, float]]


class PartitionError(Exception):
    """The layers cannot be dealt out so. ``key`` is the one to change."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key


def stage_layers(
    model: ModelArgs, stages: int, method: str, padded_vocab_size: int
) -> tuple[range, ...]:
    """The numbers of the layers that each of ``stages`` holds, in order.

    Args:
        model: the model's section of the configuration.
        stages: of the pipeline; 1 holds all.
        method: ``pipe_partition_method``.
        padded_vocab_size: rows of the embedding, for ``parameters``.

    Raises:
        PartitionError: there are more stages than layers with weights, or the method is none, or finds
            no layer.
    """
    parameters = _parameters(model, padded_vocab_size)
    with_weights = sum(count > 0 for count in parameters)
    if stages > with_weights:
        raise PartitionError(
            "pipe_parallel_size",
            f"{stages} stages for {with_weights} layers with weights (num_layers {model.num_layers}, "
            "the embedding, the norm and the head): a stage would be empty, use fewer",
        )
    ends = _even_cuts(_weights(model, method.strip(), parameters), parameters, stages)
    return tuple(range(*pair) for pair in zip((0, *ends), ends, strict=False))


def _parameters(model: ModelArgs, padded_vocab_size: int) -> list[int]:
    """Of each layer in the list; a tied head computes with a copy of the embedding's table."""
    rows = max(1, padded_vocab_size)  # where the vocabulary is not known, the table is still there
    counts = list(model.layer_parameter_counts(rows))
    counts[-1] = rows * model.hidden_size
    return counts


def _weights(model: ModelArgs, method: str, parameters: Sequence[int]) -> list[int]:
    """What counts when the layers are dealt out, for each of them."""
    kind = method.lower()
    if kind == "parameters":
        return list(parameters)
    if kind == "uniform":
        return [1] * len(parameters)
    if not kind.startswith(_TYPE):
        raise PartitionError(
            "pipe_partition_method",
            f"found {method!r}; ways are parameters, uniform, and type: with a regular expression, such as "
            "type:transformer|mlp",
        )
    head = _HEAD if model.no_weight_tying else _EMBEDDING
    names = [_EMBEDDING, "", *[_BLOCK] * model.num_layers, "", _NORM, head]
    expression = method[len(_TYPE) :]
    try:
        found = [int(bool(re.search(expression, name, re.IGNORECASE))) for name in names]
    except re.error as error:
        raise PartitionError(
            "pipe_partition_method", f"{expression!r} is no regular expression: {error}"
        ) from error
    found = [hit if name else 0 for hit, name in zip(found, names, strict=True)]
    if not any(found):
        raise PartitionError(
            "pipe_partition_method",
            f"{expression!r} finds none of the layers: {', '.join(dict.fromkeys(filter(None, names)))}",
        )
    return found


def _even_cuts(weights: Sequence[int], parameters: Sequence[int], parts: int) -> list[int]:
    """Ends of ``parts`` runs of consecutive entries: the heaviest as light as can be, then all as even
    as can be, in weight and then in length. Where that leaves a choice, the first ones are longer.

    Args:
        weights: what is to be even.
        parameters: each part must have some.
        parts: no more than entries with parameters.
    """
    sums, owned = ([0, *accumulate(numbers)] for numbers in (weights, parameters))
    total = len(weights)

    def cheapest(cost: _Cost, join: _Join) -> tuple[tuple[float, float], list[int]]:
        # best[end]: of the entries before end in so many parts, the cost and the ends of the parts.
        best: dict[int, tuple[tuple[float, float], list[int]]] = {0: ((0, 0), [])}
        for _ in range(parts):
            longer: dict[int, tuple[tuple[float, float], list[int]]] = {}
            for end in range(1, total + 1):
                for start, (before, ends) in best.items():
                    if start >= end or owned[start] == owned[end]:
                        continue
                    now = join(before, cost(sums[end] - sums[start], end - start))
                    if end not in longer or now <= longer[end][0]:
                        longer[end] = (now, [*ends, end])
            best = longer
        return best[total]

    (heaviest, _), _ = cheapest(lambda weight, _: (weight, 0), lambda a, b: max(a, b))
    _, ends = cheapest(
        lambda weight, length: (weight**2 if weight <= heaviest else math.inf, length**2),
        lambda a, b: (a[0] + b[0], a[1] + b[1]),
    )
    return ends
