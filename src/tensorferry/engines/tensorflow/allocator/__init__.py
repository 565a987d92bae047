"""TensorFlow's allocator, and the process's memory around it: what the engine asks about either, it asks here.

memory      what is held and was held at most, what hard caps leave, and room made before a step allocates
free_pages  pages of free blocks, given back to the system
blocks      blocks asked of the allocator, never more than it is known to have
addresses   hard caps, and the regions in which the allocator takes addresses
"""

from tensorferry.engines.tensorflow.allocator.memory import DeviceMemory, Peaks

__all__ = ["DeviceMemory", "Peaks"]
