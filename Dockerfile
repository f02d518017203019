# Two images from one file (docs/cluster.md, "Containers"):
#
#   docker build -t neox .                              PyTorch for GPUs, as PyPI has it, with CUDA's libraries
#   docker build -t neox:cpu --build-arg VARIANT=cpu .  PyTorch's smaller build without them
#
# No toolkit of CUDA is in either: nothing is compiled. The driver is the host's, which `docker run --gpus`
# and `apptainer exec --nv` bring along.

FROM python:3.11-slim-bookworm

# One group of packages for ranks that are started over SSH (pdsh), one for InfiniBand (NCCL opens libibverbs).
# Debian removes earlier versions of packages from its archive, so a version given here would soon not be there.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        openssh-client openssh-server pdsh \
        ibverbs-providers libibverbs1 \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*

# Where `cpu` comes from. pip prefers the version with +cpu at its end to the same one without.
ARG VARIANT=cuda
ARG CPU_INDEX=https://download.pytorch.org/whl/cpu
COPY requirements.txt /tmp/
RUN case "$VARIANT" in \
        cuda) set -- ;; \
        cpu) set -- --extra-index-url "$CPU_INDEX" ;; \
        *) echo "VARIANT is $VARIANT; expected cuda or cpu" >&2; exit 1 ;; \
    esac \
    && pip install --no-cache-dir "$@" -r /tmp/requirements.txt

# What is mounted is written with this number: --build-arg USER_ID=$(id -u) makes it yours.
ARG USER_ID=1000
RUN useradd --create-home --shell /bin/bash --uid "$USER_ID" neox

COPY . /neox/
# From any folder: python /neox/train.py, python -m megatron.doctor.probe. What the driver is asked for.
ENV PYTHONPATH=/neox \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

USER $USER_ID
WORKDIR /neox
CMD ["python", "deepy.py", "--help"]
