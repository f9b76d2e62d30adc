"""Which variables of the environment a record keeps."""

from pipeline.devices.host import that_matter


def test_what_may_change_a_stage_is_kept_and_where_files_lie_is_not() -> None:
    kept = {
        "ATEN_CPU_CAPABILITY": "default",
        "CUDA_MODULE_LOADING": "LAZY",
        "CXX": "clang++",
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F",
        "LD_PRELOAD": "libjemalloc.so",
        "NVIDIA_TF32_OVERRIDE": "0",
        "OMP_NUM_THREADS": "2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "TORCHINDUCTOR_FREEZING": "1",
        "TVM_NUM_THREADS": "1",
        "XLA_FLAGS": "--xla_cpu_use_thunk_runtime=false",
    }
    left = [
        "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "CUDNN_PATH", "CC", "HOME", "MY_TORCH", "OMP_DISPLAY_VERBOSE", "PATH",
        "PYTORCH_VERSION", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_COMPILE_DEBUG", "TORCH_LOGS", "TRITON_CACHE_DIR",
        "ORT_OTHER",
    ]  # fmt: skip
    assert that_matter(("TVM_", "XLA_"), {**dict.fromkeys(left, "x"), **kept}) == kept
