"""What can go wrong. Everything this package raises by itself is an Error, or a TimeoutError where a timeout was given."""


class Error(Exception):
    """Base of this package's errors."""


class NoPublisherError(Error, FileNotFoundError):
    """Nobody publishes the key."""


class NotAvailableError(Error):
    """The publisher does not have what was asked for: no packets, or no frames."""


class ProtocolError(Error):
    """The other side broke the protocol, or lied about its memory."""


class MountError(Error):
    """The publisher lives, and its memory is not in this process's /dev/shm."""


class RefusedError(Error):
    """The publisher refused, with an error number of the protocol in code."""

    def __init__(self, code, message=""):
        self.code = code
        name = CODES.get(code, "error %d" % code)
        super().__init__("the publisher answers %s%s" % (name, ": " + message if message else ""))


class EndedError(Error):
    """The publisher has ended. reason is 0 (normal), 1 (error), 2 (another generation follows), or None for an end without a word."""

    def __init__(self, message, reason=None):
        self.reason = reason
        super().__init__(message)


class FaultError(Error):
    """Shared memory vanished: its owner has cut the file."""


class FrameOverrun(Error):
    """A frame was overwritten while it was in use: what was made from its pixels may mix two pictures."""


class GPUError(Error):
    """The CUDA driver is missing, or a call of it failed."""


# Error numbers of the protocol.
CODES = {
    -1: "ERR_INVALID_ARG", -2: "ERR_OUT_OF_MEMORY", -3: "ERR_CUDA", -4: "ERR_IO", -5: "ERR_TIMEOUT", -6: "ERR_PROTOCOL",
    -7: "ERR_FORMAT", -8: "ERR_TOO_MANY", -9: "ERR_NOT_FOUND", -10: "ERR_ALREADY_EXISTS", -11: "ERR_DISCONNECTED", -12: "ERR_BUSY",
    -13: "ERR_INTERNAL", -14: "ERR_NOT_AVAILABLE", -20: "ERR_PACKET_OVERSIZED", -21: "ERR_NO_PACKET_RING",
    -22: "ERR_NO_CODEC_PARAMS", -23: "ERR_PACKET_OVERRUN",
}
PROTOCOL, NOT_FOUND, BUSY, NO_PACKET_RING = -6, -9, -12, -21
