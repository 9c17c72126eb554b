"""Rules: bytes a setting needs. Pure functions of (model, settings, grid)."""

from __future__ import annotations

from fitkit.rules.base import Allocation, Evidence, IntArray, Job, Rules, Term

__all__ = ["Allocation", "Evidence", "IntArray", "Job", "Rules", "Term"]
