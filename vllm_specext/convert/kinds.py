"""What checkpoints are, and what each can become. Names only: nothing is imported that takes time."""

from enum import StrEnum


class Format(StrEnum):
    """A checkpoint's format, as messages call it."""

    EAGLE = "EAGLE-1, EAGLE-2 or HASS"
    GRIFFIN = "GRIFFIN"
    MOA = "MoA"
    EAGLE3 = "EAGLE-3"
    SPECULATORS = "EAGLE-3 in the layout of speculators"
    DFLASH = "DFlash"
    DSPARK = "DSpark"
    IN_BFLOAT16 = "the same in bfloat16"


class To(StrEnum):
    """What a checkpoint is to become."""

    GRIFFIN = "griffin"
    SPECULATORS = "speculators"
    EAGLE = "eagle"
    BFLOAT16 = "bfloat16"


TAKES = {
    To.GRIFFIN: (Format.EAGLE, Format.GRIFFIN),
    To.SPECULATORS: (Format.EAGLE3, Format.GRIFFIN, Format.MOA),
    To.EAGLE: (Format.SPECULATORS,),
    To.BFLOAT16: (
        Format.EAGLE3,
        Format.SPECULATORS,
        Format.DFLASH,
        Format.DSPARK,
        Format.EAGLE,
        Format.GRIFFIN,
        Format.MOA,
    ),
}
"""The formats that each is made of."""

METHODS = {
    Format.EAGLE: "griffin",
    Format.GRIFFIN: "griffin",
    Format.MOA: "moa",
    Format.EAGLE3: "eagle3-tree",
    Format.SPECULATORS: "eagle3-tree",
    Format.DFLASH: "dflash-tree",
    Format.DSPARK: "dspark-tree",
}
"""The one of our methods that a converted drafter of each format is served by."""

SERVED_BY = {found: f"method {method} serves" for found, method in METHODS.items()} | {
    Format.EAGLE: "methods griffin and eagle-tree serve"
}
"""Which of our methods serve each format as it is."""
