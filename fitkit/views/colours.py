"""One meaning a colour (Okabe-Ito), never colour alone."""

from __future__ import annotations

TERMS = {
    "weights": ("Weights", "#7A7A7A"),
    "kv": ("KV cache", "#0072B2"),
    "state": ("State", "#56B4E9"),
    "compute": ("Compute", "#E69F00"),
    "runtime": ("Runtime", "#BDBDBD"),
}  # fmt: skip
VERDICTS = {"fits": "#0072B2", "close": "#E5C700", "no": "#D55E00"}
STRENGTH = {"fits": 0.35, "close": 0.5, "no": 0.2}
KV_COLOURS = ("#0072B2", "#E69F00", "#56B4E9", "#7A7A7A", "#009E73")
KV_DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 4])
