"""What can be said of the net and its weights from the request and the header of a file, before anything starts."""

from models import weights_file
from pipeline.config.data_request import TENSORS, VOLUME
from pipeline.config.request_error import RequestError
from pipeline.config.schema import DataSpec, ModelSpec

OWN_NETS = "models."  # whose options are known
CHANNELS = "in_channels"


def check_net(model: ModelSpec, data: DataSpec) -> None:
    """That the file of weights may be one, and that a net of ours takes as many channels as the images have.

    Raises:
        RequestError: it doesn't; the line names both knobs.
        CheckpointError: as `models.weights_file.check`.
    """
    if model.checkpoint:
        weights_file.check(model.checkpoint)
    taken, given = model.options.get(CHANNELS), data.contract.channels
    if model.target.startswith(OWN_NETS) and data.name not in (TENSORS, VOLUME) and taken not in (None, given):
        raise RequestError(
            f"model.options.{CHANNELS}={taken}: the images have data.channels={given}; set one to the other"
        )
