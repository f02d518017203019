"""Fill an engine from a store of parameters, whatever layout either has.

One parameter after the other: this rank's model-parallel part of each of its states is put together
(:class:`~megatron.checkpointing.universal_pieces.PartReader`) and handed to the optimizer, which keeps the
cut of it that is this data-parallel rank's. Weights in half precision follow from the fp32 ones, as after
a step.

A rank reads the old ranks' files themselves, no copy in another form: of each it reads (maps) only what
it needs, nothing is written, no rank waits for another one's conversion, and a full disk or a folder that
is read-only does not matter.

The optimizer's settings (weight decay, betas, eps) are the configuration's and stay as they are.
"""

from __future__ import annotations

from megatron.checkpointing.deepspeed_files import model_under
from megatron.checkpointing.looking import CheckpointInfo
from megatron.checkpointing.together import together
from megatron.checkpointing.universal import VALUE, ParameterStore
from megatron.checkpointing.universal_engines import (
    Target,
    require_own_states,
    set_engine_state,
    target_of,
)
from megatron.checkpointing.universal_files import open_store
from megatron.checkpointing.universal_pieces import Part, PartReader, require_same_model
from megatron.mpu import ParallelGroups
from megatron.neox_arguments.sections import ModelArgs
from megatron.runtime.stock_deepspeed import Engine


def load_reshaped(
    engine: Engine,
    info: CheckpointInfo,
    *,
    model: ModelArgs,
    groups: ParallelGroups,
    load_optim: bool = True,
) -> None:
    """Put ``engine`` into the state of a checkpoint of any layout, or of none. All ranks call this.

    Args:
        engine: DeepSpeed's engine, built for the same model.
        info: a checkpoint with a manifest.
        model: the model's section of the configuration.
        groups: the layout of this run.
        load_optim: the optimizer's state too. Without it the optimizer starts afresh.

    Raises:
        CheckpointError: on every rank, when any rank cannot read it or it holds another model.
    """
    world = groups.world
    target = target_of(engine)
    rank, size = groups.get_model_parallel_rank(), groups.get_model_parallel_world_size()
    shapes = {name: target.shape_of(p) for name, p in target.parameters.items()}
    opened: list[ParameterStore] = []

    def open_and_compare() -> None:
        store = open_store(info, with_optimizer=load_optim)
        require_same_model(info, store, model, model_under(engine), shapes, size)
        if load_optim:
            skipped = store.engine.skipped_steps
            require_own_states(info, set(store.states) - {VALUE}, engine, skipped)
        opened.append(store)

    together(world, open_and_compare)
    store = opened[0]
    together(world, lambda: _fill(target, store, model, (rank, size), load_optim))
    target.finish()
    set_engine_state(engine, info.step, store.engine)


def _fill(
    target: Target,
    store: ParameterStore,
    model: ModelArgs,
    rank_of_size: tuple[int, int],
    with_optimizer: bool,
) -> None:
    reader = PartReader(store, model)
    states = store.states if with_optimizer else (VALUE,)
    if with_optimizer:
        target.make_states(states[1:], store.engine.optimizer_step)
    for name, parameter in target.parameters.items():
        if not target.holds(parameter):
            continue
        part = Part(name, target.shape_of(parameter), *rank_of_size)
        for state in states:
            target.set(parameter, state, reader.read(state, part))
