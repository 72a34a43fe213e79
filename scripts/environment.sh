# shellcheck shell=bash
# Sourced by the scripts that run tests or measurements: the same surroundings everywhere, and no word to the outside.
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 # one busy thread per process: more of them only fight for the cores
export TOKENIZERS_PARALLELISM=false
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1
export VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
export PYTHONNOUSERSITE=1
export FTIS_CACHE="${FTIS_CACHE:-$HOME/.cache/ftis}"
export TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-$FTIS_CACHE/inductor}" # vLLM's kernel is compiled once, not per run
