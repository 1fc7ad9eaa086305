"""Bytes that may stop within a character, or be no text at all."""


def is_boundary(data: bytes | bytearray, place: int) -> bool:
    """Whether no character of ``data`` reaches across ``place``."""
    return place >= len(data) or data[place] & 0xC0 != 0x80


def leading(data: bytes) -> str:
    """The text that ``data`` begins with, up to the first byte that does not belong to a whole character."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start].decode()


def runs(data: bytes) -> tuple[list[tuple[str, int]], int]:
    """The texts between bytes that are no UTF-8, each with the place where it ends; and the size of ``data`` without a
    last character that has only begun."""
    found = []
    start = 0
    while start < len(data):
        try:
            found.append((data[start:].decode(), len(data)))
            break
        except UnicodeDecodeError as error:
            if error.start:
                found.append((data[start : start + error.start].decode(), start + error.start))
            if error.reason == "unexpected end of data":
                return found, start + error.start
            start += error.end
    return found, len(data)
