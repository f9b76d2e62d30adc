"""What can be said of the net and its weights from the request and the header of a file, before anything starts."""

from pipeline.config.data_request import TENSORS, VOLUME
from pipeline.config.request_error import RequestError
from pipeline.inputs import weights_file
from pipeline.inputs.targets import hidden
from pipeline.records.request import DataSpec, ModelSpec

CUSTOM = "custom"  # the preset of a net of the user's
OWN_NETS = "models."  # whose options are known
CHANNELS = "in_channels"


def check_net(model: ModelSpec, data: DataSpec) -> None:
    """That the net is the one that was meant, its file of weights may be one, and its channels are the images'.

    Raises:
        RequestError: the user's own net of this name is hidden by ours, or a net of ours takes other channels.
        CheckpointError: as `pipeline.inputs.weights_file.check`.
    """
    if model.name == CUSTOM and (theirs := hidden(model.target)):
        raise RequestError(f"model.target={model.target}: also the name of {theirs}; rename that file")
    if model.checkpoint:
        weights_file.check(model.checkpoint)
    taken, given = model.options.get(CHANNELS), data.contract.channels
    if model.target.startswith(OWN_NETS) and data.name not in (TENSORS, VOLUME) and taken not in (None, given):
        raise RequestError(
            f"model.options.{CHANNELS}={taken}: the images have data.channels={given}; set one to the other"
        )
