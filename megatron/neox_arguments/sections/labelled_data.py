"""Samples with labels, rewards or counterparts, and samples from a server; refused for now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from megatron.neox_arguments.typed import Ignored, Refused

_NOT_YET = Refused("not supported yet: take it out")
_Paths = Annotated[tuple[str, ...] | None, _NOT_YET]
_WITH_SERVER = Ignored("has a meaning with serve_model_weights only")
_WITH_ONLINE = Ignored("has a meaning with dataset_impl: online only")


@dataclass(frozen=True)
class LabelledDataArgs:
    """Token files that stand beside those of `*_data_paths`, document for document."""

    dataset_impl: Annotated[Literal["gpt2", "pairwise", "online"], Refused("only gpt2 for now")] = (
        "gpt2"
    )
    """What a sample is: a piece of text, a pair of texts, or what a server sends."""

    train_reward_data_paths: _Paths = None
    """Rewards of training, a number per document."""

    valid_reward_data_paths: _Paths = None
    """Rewards of validation, a number per document."""

    test_reward_data_paths: _Paths = None
    """Rewards of the test split, a number per document."""

    pos_train_data_paths: _Paths = None
    """`dataset_impl: pairwise`: the preferred texts of training."""

    pos_train_label_data_paths: _Paths = None
    """Labels of the preferred texts of training."""

    pos_valid_data_paths: _Paths = None
    """`dataset_impl: pairwise`: the preferred texts of validation."""

    pos_valid_label_data_paths: _Paths = None
    """Labels of the preferred texts of validation."""

    pos_test_data_paths: _Paths = None
    """`dataset_impl: pairwise`: the preferred texts of the test split."""

    pos_test_label_data_paths: _Paths = None
    """Labels of the preferred texts of the test split."""

    neg_train_data_paths: _Paths = None
    """`dataset_impl: pairwise`: the rejected texts of training."""

    neg_train_label_data_paths: _Paths = None
    """Labels of the rejected texts of training."""

    neg_valid_data_paths: _Paths = None
    """`dataset_impl: pairwise`: the rejected texts of validation."""

    neg_valid_label_data_paths: _Paths = None
    """Labels of the rejected texts of validation."""

    neg_test_data_paths: _Paths = None
    """`dataset_impl: pairwise`: the rejected texts of the test split."""

    neg_test_label_data_paths: _Paths = None
    """Labels of the rejected texts of the test split."""

    online_dataserver_ips: Annotated[str | tuple[str, ...], _WITH_ONLINE] = "localhost"
    """Hosts that send samples."""

    online_dataserver_ports: Annotated[int | tuple[int, ...], _WITH_ONLINE] = 10000
    """Their ports."""

    serve_model_weights: Annotated[bool, _NOT_YET] = False
    """Whether ranks send their weights to those who ask."""

    weight_server_port: Annotated[int | tuple[int, ...], _WITH_SERVER] = 6000
    """Ports at which they do."""
