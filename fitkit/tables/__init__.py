"""Tables: the product of all axes as one tidy frame. `product` holds demand() and fit(); the other files are its steps.

resolve, combine, axes     what was asked: names and numbers; which pairs go together; one question without its numbers
layouts, verdict, reach    which numbers of GPUs are tried; whether they hold it; how far that goes
together, disk, search     many machines at once; the place for models; the largest number that fits
terms, columns, words      terms as columns; a verdict as columns; the same in words
frames, asked              columns with fixed dtypes; what a frame was asked with
"""

from __future__ import annotations

from fitkit.tables.product import demand, fit

__all__ = ["demand", "fit"]
