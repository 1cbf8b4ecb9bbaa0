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
    (".weight_scale", "a requantised or converted derivative (scales here are named .scale)"),
    (".qweight", "a requantised derivative (GPTQ or AWQ)"),
    (".lora_A.", "an adapter, not a model"),
)

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
    seen: set[str] = set()
    for part, kind in FOREIGN_NAMES:
        found = tuple(name for name in everything if part in name)
        if found and kind not in seen and not (part == ".weight_scale" and ".weight_scale_inv" in found[0]):
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
