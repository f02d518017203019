"""What Slurm's and MPI's launchers say becomes what torch reads."""

from __future__ import annotations

import pytest

from megatron.errors import LaunchError
from megatron.ranks import expand_host_list, is_own_address, rank_variables

SLURM = {
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_STEP_NODELIST": "n[1-3]",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


def test_slurm() -> None:
    found = rank_variables(SLURM)
    port = found.pop("MASTER_PORT")
    assert found == {
        "RANK": "4",
        "WORLD_SIZE": "5",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": "2",
        "MASTER_ADDR": "n1",
    }
    assert 15_000 <= int(port) < 30_000
    others = SLURM | {"SLURM_PROCID": "0", "SLURM_NODEID": "0"}
    assert rank_variables(others)["MASTER_PORT"] == port  # the same on every rank
    assert rank_variables(others)["LOCAL_WORLD_SIZE"] == "2"
    assert rank_variables(SLURM | {"SLURM_JOB_ID": "78"})["MASTER_PORT"] != port


def test_open_mpi() -> None:
    where = {"MASTER_ADDR": "n1", "MASTER_PORT": "5"}
    assert rank_variables(OPEN_MPI | where) == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
    }
    uri = {"OMPI_MCA_orte_hnp_uri": "123.0;tcp://10.0.0.7,10.1.0.7:4000"}
    assert rank_variables(OPEN_MPI | uri)["MASTER_ADDR"] == "10.0.0.7"
    with pytest.raises(LaunchError, match="mpirun -x MASTER_ADDR"):
        rank_variables(OPEN_MPI)
    one_host = OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    assert rank_variables(one_host)["MASTER_ADDR"] == "127.0.0.1"


def test_process_managers_of_mpich() -> None:
    env = {"PMI_SIZE": "2", "PMI_RANK": "1", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
    found = rank_variables(env)
    assert (found["RANK"], found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"]) == ("1", "1", "2")
    with pytest.raises(LaunchError, match="PMI_SIZE=2, but MPI_LOCALRANKID is not set"):
        rank_variables({"PMI_SIZE": "2", "PMI_RANK": "1"})


@pytest.mark.parametrize(
    "env",
    [
        {},
        {
            "SLURM_NTASKS": "4",
            "SLURM_PROCID": "0",
        },  # a batch script: one process of a job of four tasks
        SLURM | {"RANK": "0", "WORLD_SIZE": "2"},  # torchrun under srun
        {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
    ],
)
def test_where_nothing_is_to_be_added(env: dict[str, str]) -> None:
    assert rank_variables(env) == {}


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", []),
        ("a", ["a"]),
        ("a,b-1", ["a", "b-1"]),
        ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("n[08-10]-ib,login", ["n08-ib", "n09-ib", "n10-ib", "login"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
    ],
)
def test_host_lists(text: str, hosts: list[str]) -> None:
    assert expand_host_list(text) == hosts


def test_own_addresses() -> None:
    assert is_own_address("127.0.0.1")
    assert not is_own_address("192.0.2.1")
