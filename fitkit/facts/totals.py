"""Why a published total of parameters is not the one counted from the shape: accounted for to the parameter where that can be."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fitkit.facts import rows

if TYPE_CHECKING:
    from fitkit.model import Model


def why(model: Model, published: str, line: dict[str, str]) -> str:
    """The reason why the published total is another one; empty where it is ours."""
    check = line["param_check"]
    if not published:
        return "no total is published"
    more = int(published) - model.params
    if not more:
        return ""
    for told in rows("totals"):
        if told["repo"] == line["model"]:
            return told["why"]
    if "reference total is rounded" in check:
        return "the published total is a rounded figure"
    if model.quant or "quantized total" in check:
        return "the published total counts packed elements and scales"
    if "untied lm_head copy" in check:
        return "the checkpoint stores the tied head a second time"
    masks = len(model.layers) * model.context**2
    if "causal-mask" in check or abs(more - masks) <= 1e-4 * masks:
        return f"the published total counts {more:,} elements of causal masks"
    if -more == model.hidden_size * model.vocab_size:
        return "the checkpoint leaves the head out"
    if -more == sum(tensor.elements * tensor.copies for tensor in model.tensors if tensor.part):
        return "the checkpoint has the text model alone"
    if abs(more) <= 1e-4 * model.params:
        kind = "counts" if more > 0 else "leaves out"
        return f"the published total {kind} {abs(more):,} elements of buffers, routing biases or scales"
    mtp = sum(tensor.elements * tensor.copies for tensor in model.tensors if tensor.part == "mtp")
    table = model.hidden_size * model.vocab_size
    if mtp and more in (mtp, mtp - table, mtp - 2 * table):
        own = "" if more == mtp else ", whose token tables are the model's own"
        return f"the checkpoint also holds MTP blocks{own}, which no engine loads by default"
    if more > 0 and "exact+mtp" in check:
        return f"the checkpoint also holds MTP blocks of {more:,} parameters, which no engine loads by default"
    if more > 0 and "MTP" in check:
        return f"the checkpoint holds {more:,} parameters more than its config describes (MTP blocks, a second head or other parts)"
    counted = int(line["params_computed"] or 0)
    if abs(counted - model.params) <= 1e-4 * model.params:
        return f"an independent count from the same shape gives this total too; the listed one differs by {more:,}"
    size = re.search(r"(\d+(\.\d+)?)b(-|$)", line["model"].split("/")[-1].lower())
    if size and abs(model.params / 1e9 / float(size[1]) - 1) < 0.1 < abs(int(published) / 1e9 / float(size[1]) - 1):
        return f"the listed total contradicts the {size[1]}B in the model's name, which this one agrees with"
    return f"differs by {more:,}; not explained"
