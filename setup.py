"""Packaging: ``pip install -e .`` makes ``megatron`` importable from anywhere."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent


def requirements() -> list[str]:
    lines = (HERE / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return [line.split("#")[0].strip() for line in lines if line.split("#")[0].strip()]


def version() -> str:
    for line in (HERE / "megatron" / "__init__.py").read_text(encoding="utf-8").splitlines():
        if line.startswith("__version__"):
            return line.split('"')[1]
    raise RuntimeError('megatron/__init__.py: no line __version__ = "…" found')


setup(
    name="megatron-trainer",
    version=version(),
    description="A YAML-driven trainer for large autoregressive language models",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=find_packages(include=["megatron", "megatron.*"]),
    install_requires=requirements(),
    extras_require={
        "sentencepiece": ["sentencepiece>=0.2"],  # SPMTokenizer
        "parquet": ["pyarrow>=16"],  # .parquet as input of preprocessing
        "ftfy": ["ftfy>=6"],  # --ftfy
        "plot": ["matplotlib>=3.8"],  # the picture of coord_check
        "hub": ["huggingface_hub>=0.24"],  # tools/ckpts/upload.py
        "transformers": ["transformers>=4.45"],  # conversions compare logits with it
    },
)
