"""Where half precision goes wrong, as a clause of a stage's reason and of the report."""

from pipeline.records.diagnostics import PrecisionFault

LARGEST = {"fp16": 65504.0, "bf16": 3.3895e38}  # that each can hold: IEEE 754 binary16, and bfloat16


def fault_text(found: PrecisionFault) -> str:
    """Such as "first at up.0.conv: fp32 reaches 1.2e+05 there, and fp16 holds no more than 65504"."""
    where = f"first at {found.module or 'the net itself'}"
    if found.kind == "overflow":
        largest = LARGEST[found.precision]
        reached = max(found.magnitude, found.input_magnitude or 0.0)
        if reached > largest:
            return f"{where}: fp32 reaches {reached:.3g} there, and {found.precision} holds no more than {largest:.6g}"
        return f"{where}: {found.precision} overflows within it, where fp32 reaches {reached:.3g}"
    jump = f"{found.error:.2g} (relative L2) in {found.precision}, {found.error_before:.2g} before it"
    return f"{where}: its error is {jump}"
