"""A step captured once as a CUDA graph and then replayed: the host launches one thing instead of a thousand."""

import sys
from collections.abc import Callable

import torch

EAGER_STEPS = 3  # before the capture: libraries choose their algorithms, optimizers and meters make their state


class Replay:
    """Calls a step that works on device tensors which stay in place; from the fourth time on it is replayed.

    A step that cannot be captured is called every time, and one line says why.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.calls, self.graph = 0, None
        self.stream = torch.cuda.Stream(device)

    def __call__(self, step: Callable[[], None]) -> None:
        if self.graph is None and self.calls == EAGER_STEPS:
            self._capture(step)
        self.calls += 1
        if self.graph is not None:
            self.graph.replay()
            return
        here = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):  # capture happens on a side stream, so memory is warm there
            step()
        here.wait_stream(self.stream)

    def _capture(self, step: Callable[[], None]) -> None:
        """What the step does in a capture is only written down, so a failed one has changed nothing on the device."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):  # a checkpoint's copy
                step()
        except RuntimeError as error:
            torch.cuda.synchronize(self.device)
            generator = torch.cuda.default_generators[self.device.index]
            generator.graphsafe_set_state(generator.clone_state())  # the copy does not wait for a capture to end
            cause = error.__context__ or error
            reason = next(iter(str(cause).splitlines()), type(cause).__name__)
            print(f"the step cannot be captured as a CUDA graph, so it runs slower: {reason}", file=sys.stderr)
        else:
            self.graph = graph
