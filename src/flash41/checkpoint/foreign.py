"""Recognising checkpoints of another kind, so that the error names the kind instead of ten thousand tensors."""

from collections.abc import Iterable, Iterator

from flash41.checkpoint.faults import Fault, FaultKind, listed

FOREIGN_SUFFIXES = {
    ".gguf": "a GGUF file (llama.cpp)",
    ".ggml": "a GGML file (llama.cpp)",
    ".bin": "a PyTorch pickle, which is never opened",
    ".pt": "a PyTorch pickle, which is never opened",
    ".pth": "a PyTorch pickle, which is never opened",
    ".onnx": "an ONNX graph",
}

FOREIGN_NAMES = (
    ("compressor.ape", "a DeepSeek-V4 checkpoint"),
    ("tid2eid", "a DeepSeek-V4 checkpoint"),
    ("hc_head_", "a DeepSeek-V4 checkpoint"),
    (".weight_scale_inv", "a requantised or converted derivative (scales here are named .scale and multiply)"),
    (".weight_scale_2", "an NVFP4 derivative (ModelOpt; scales here are named .scale)"),
    (".weight_packed", "a compressed-tensors derivative"),
    (".weight_scale", "a requantised or converted derivative (scales here are named .scale)"),
    (".input_scale", "a requantised derivative with static activation scales"),
    (".qweight", "a requantised derivative (GPTQ or AWQ)"),
    (".qzeros", "a requantised derivative (GPTQ or AWQ)"),
    (".absmax", "a bitsandbytes derivative"),
    (".scales", "an MLX derivative"),
    (".gate_proj.", "a checkpoint with the experts of another converter (w1, w2 and w3 here)"),
    (".lora_A.", "an adapter, not a model"),
    ("blk.", "a GGUF conversion (names of llama.cpp)"),
)
"""Parts of names that no tensor of a release has, the more telling ones first."""

FOREIGN_PREFIX = "model."


def foreign_files(present: Iterable[str]) -> Iterator[Fault]:
    """One fault per kind of foreign weight file, where a directory holds no .safetensors file at all."""
    names = sorted(present)
    if any(name.endswith(".safetensors") for name in names):
        return
    for suffix, kind in FOREIGN_SUFFIXES.items():
        found = tuple(name for name in names if name.endswith(suffix))
        if found:
            yield _fault(f"files {listed(found)}", kind, found)


def leftovers(present: Iterable[str]) -> tuple[str, ...]:
    """Weight files of other formats in a directory; harmless beside a whole checkpoint, and worth a word."""
    return tuple(sorted(name for name in present if any(name.endswith(suffix) for suffix in FOREIGN_SUFFIXES)))


def foreign_names(names: Iterable[str]) -> Iterator[Fault]:
    """One fault per sign that the tensors were named by another model or converter."""
    everything = tuple(names)
    seen, told = set[str](), set[str]()
    for part, kind in FOREIGN_NAMES:
        found = tuple(name for name in everything if part in name and name not in told)
        told.update(found)
        if found and kind not in seen:
            seen.add(kind)
            yield _fault(f"tensors {listed(found)}", kind, found)
    found = tuple(name for name in everything if name.startswith(FOREIGN_PREFIX))
    if found:
        yield _fault(
            f"tensors {listed(found)}", f"a converted checkpoint (names here carry no {FOREIGN_PREFIX!r})", found
        )


def _fault(thing: str, kind: str, names: tuple[str, ...]) -> Fault:
    message = f"{thing}: got signs of {kind}, expected a DeepSeek-V4.1 checkpoint as released"
    return Fault(kind=FaultKind.DIRECTORY, message=message, names=names)
