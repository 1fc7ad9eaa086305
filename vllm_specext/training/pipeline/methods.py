"""The methods whose drafters can be trained, by the names of the command."""

from vllm_specext.training.choices import Trained
from vllm_specext.training.pipeline.block import DFLASH_METHOD, DSPARK_METHOD
from vllm_specext.training.pipeline.eagle3 import Eagle3Method
from vllm_specext.training.pipeline.griffin import GriffinMethod
from vllm_specext.training.pipeline.method import TrainedMethod
from vllm_specext.training.pipeline.moa import MoAMethod
from vllm_specext.training.pipeline.mtp import MtpMethod

TRAINABLE: dict[Trained, TrainedMethod] = {
    "griffin": GriffinMethod(),
    "eagle3": Eagle3Method(),
    "dflash": DFLASH_METHOD,
    "dspark": DSPARK_METHOD,
    "mtp": MtpMethod(),
    "moa": MoAMethod(),
}
