"""Reads cameras that cfpipe publishes: encoded packets and decoded pictures, out of shared memory.

    for packet in cfpipe.packets("cam1"): ...
    for frame in cfpipe.frames("cam1"): ...

Pure Python; the standard library is enough for packets and for bytes of pictures. NumPy, CuPy and PyTorch take a frame's planes
without a copy.
"""

from ._frames import Frame, Frames, FrameStats, Plane, frames
from ._packets import CORRUPT, DISCONTINUITY, KEY, LAST_IN_AU, Packet, Packets, PacketStats, packets
from .errors import (EndedError, Error, FaultError, FrameOverrun, GPUError, MountError, NoPublisherError, NotAvailableError, ProtocolError,
                     RefusedError)

__version__ = "0.1.0"

__all__ = [
    "packets", "frames", "Packets", "Frames", "Packet", "Frame", "Plane", "PacketStats", "FrameStats",
    "KEY", "CORRUPT", "DISCONTINUITY", "LAST_IN_AU",
    "Error", "NoPublisherError", "NotAvailableError", "ProtocolError", "MountError", "RefusedError", "EndedError", "FaultError",
    "FrameOverrun", "GPUError",
]
