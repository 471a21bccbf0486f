"""BatchNorm over the images of all ranks."""

from timm.layers import BatchNormAct2d, convert_sync_batchnorm
from torch import Tensor, float32, nn, no_grad, promote_types
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from percentmatch.distributed.group import num_ranks, sum_with_gradient


def share_norms(model: nn.Module, *, on_gpu: bool) -> None:
    """Let the BatchNorm layers in a model learn from all ranks and normalise by all, in place; names stay."""
    if on_gpu:
        convert_sync_batchnorm(model)
        return
    for module in model.modules():
        module.__class__ = SHARED.get(type(module), type(module))


class SharedNorm(BatchNorm):
    """What torch's `SyncBatchNorm` does, which is for GPUs only."""

    def forward(self, input: Tensor) -> Tensor:
        return _normalise(self, input)


class SharedNormAct(BatchNormAct2d):
    """The same with the activation that timm's layer ends with."""

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(_normalise(self, x)))


SHARED: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: SharedNorm,
    nn.BatchNorm2d: SharedNorm,
    BatchNormAct2d: SharedNormAct,
}


def _normalise(norm: BatchNorm, values: Tensor) -> Tensor:
    """Values (n, c, ...), equally many on each rank, by the mean and variance of all."""
    running_mean, running_var, momentum = norm.running_mean, norm.running_var, norm.momentum
    if not norm.training:
        return F.batch_norm(values, running_mean, running_var, norm.weight, norm.bias, eps=norm.eps)
    values = values.to(promote_types(values.dtype, float32))  # as bfloat16, means would be coarse
    axes = [axis for axis in range(values.ndim) if axis != 1]
    mean = sum_with_gradient(values.mean(axes, keepdim=True)) / num_ranks()  # (1, c, ...)
    centred = values - mean
    variance = sum_with_gradient(centred.square().mean(axes, keepdim=True)) / num_ranks()
    if running_mean is not None and running_var is not None and momentum is not None:
        count = values.numel() // values.shape[1] * num_ranks()
        with no_grad():
            running_mean.lerp_(mean.flatten(), momentum)
            running_var.lerp_(variance.flatten() * (count / (count - 1)), momentum)
            if norm.num_batches_tracked is not None:
                norm.num_batches_tracked.add_(1)
    normal = centred * (variance + norm.eps).rsqrt()
    return normal * norm.weight.view_as(mean) + norm.bias.view_as(mean) if norm.affine else normal
