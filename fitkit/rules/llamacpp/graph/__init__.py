"""The graph llama.cpp reserves its compute buffers for: what lives when, on which device.

The engine sizes a compute buffer by building the graph of its largest batch, assigning each operation to a device and laying every
intermediate tensor out in one address range, reusing what is no longer needed. This package does the same with sizes only, as linear
forms of the batch and the context, so that one small graph gives the buffer of a whole grid.
"""
