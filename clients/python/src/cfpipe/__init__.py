"""Reads cameras that cfpipe shares on this machine. Pure Python; NumPy, CuPy and PyTorch are used where the caller has them.

    import cfpipe
    with cfpipe.Frames("cam1") as frames:
        for frame in frames:                 # the newest picture, again and again
            y, uv = frame.numpy()            # views of shared memory, no copy
            detect(y)
            if not frame.release():          # False: the picture was overwritten while it was in use
                discard_result()
"""

from .control import CfpipeError, Disconnected, NotFound, Subscription
from .frames import Frame, Frames, Meta, Plane
from .packets import CORRUPT, DISCONTINUITY, KEY, Packet, Packets

__all__ = [
    "CfpipeError", "Disconnected", "NotFound", "Subscription", "Frame", "Frames", "Meta", "Plane", "Packet", "Packets",
    "KEY", "CORRUPT", "DISCONTINUITY",
]
