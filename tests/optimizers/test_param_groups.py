"""Protects which parameters decay."""

import torch
from torch import nn

from megatron.model import Parametrization
from megatron.optimizers import set_learning_rate, weight_decay_groups


def test_matrices_decay_vectors_do_not_frozen_ones_are_left_out() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    model[3].weight.requires_grad_(False)
    groups = weight_decay_groups(model, 0.1)
    assert [(g["name"], g["weight_decay"]) for g in groups] == [("decay", 0.1), ("no_decay", 0.0)]
    assert [tuple(p.shape) for p in groups[0]["params"]] == [(5, 4), (3, 4)]
    assert [tuple(p.shape) for p in groups[1]["params"]] == [(3,), (3,), (3,), (2,)]


def test_an_empty_group_is_left_out() -> None:
    only_matrices = nn.Linear(3, 2, bias=False)
    assert [g["name"] for g in weight_decay_groups(only_matrices, 0.1)] == ["decay"]


def test_a_shared_parameter_is_listed_once() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
    model[1].weight = model[0].weight
    (group,) = weight_decay_groups(model, 0.1)
    assert len(group["params"]) == 1
    assert torch.equal(group["params"][0], model[0].weight)


def test_matrices_of_a_wider_model_learn_slower_and_decay_as_much() -> None:
    made = Parametrization(ratios={"0.weight": 4.0})
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    groups = weight_decay_groups(model, 0.1, made)
    set_learning_rate(groups, 0.02)
    assert [(g["name"], g["weight_decay"], g["lr"], g["parameter_names"]) for g in groups] == [
        ("decay", 0.1, 0.02, ["1.weight"]),
        ("no_decay", 0.0, 0.02, ["0.bias", "1.bias"]),
        ("decay, 4 times as wide", 0.4, 0.005, ["0.weight"]),
    ]


def test_groups_of_a_standard_model_have_nothing_more() -> None:
    (group,) = weight_decay_groups(nn.Linear(3, 2, bias=False), 0.1)
    assert group.keys() == {"params", "weight_decay", "name"}
