"""Class InferRequest: runs one inference at a time, with its own inputs, outputs, state and memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ovgpu._util.attributes import attribute
from ovgpu._util.claim import Claim
from ovgpu.api.in_flight import InFlight
from ovgpu.api.request_tensors import RequestTensors
from ovgpu.api.watchers import Watchers
from ovgpu.compile.compilation import Compilation
from ovgpu.request.results import OVDict
from ovgpu.request.session import Session
from ovgpu.request.variables import VariableState
from ovgpu.runtime.plan import Plan
from ovgpu.runtime.profile import ProfilingInfo, Span

if TYPE_CHECKING:
    from ovgpu.api.compiled_model import CompiledModel


CALLER = "caller"
"""The party of a `Claim` that stands for the caller of `InferRequest.start`."""


class InferRequest(RequestTensors):
    """Request that runs a compiled model. Create it with `CompiledModel.create_infer_request`.

    Methods raise RuntimeError "Infer Request is busy" while an inference is running. An inference that fails leaves the
    state unchanged and the request usable. In a forked process the request continues with the state that it had,
    without the inference that was running; on a CUDA device it raises DeviceError there.
    """

    def __init__(self, other: Compilation | InferRequest) -> None:
        """Make another object for the same request. A subclass may add to it."""
        if isinstance(other, InferRequest):
            self.__dict__ = other.__dict__
            return
        if not isinstance(other, Compilation):
            type_name = type(other).__name__
            raise TypeError(
                f"InferRequest takes a request, got {type_name}: CompiledModel.create_infer_request makes one"
            )
        self._session = Session(other)
        self._owner = Claim()  # the running inference owns the request
        self._last: InFlight | None = None  # the inference that was started last
        self._watchers = Watchers("ovgpu-request", one_by_one=True)
        self._callback: Callable[[Any], Any] | None = None
        self._userdata: Any = None

    # ---- running

    def infer(
        self,
        inputs: Any = None,
        share_inputs: bool = False,
        share_outputs: bool = False,
        *,
        decode_strings: bool | None = True,
        ml_dtypes: bool = False,
    ) -> OVDict:
        """Set inputs, run an inference, and return the outputs as arrays.

        ``inputs`` is a dict by port, index or tensor name, a list or tuple, or the single value of a model with one
        input. Inputs that are not passed keep their values. Values are Tensors, arrays or objects that NumPy makes
        arrays of; arrays are converted to the model's types. With ``share_inputs``, arrays are read in place instead of
        copied, if type and layout allow. With ``share_outputs``, the results are views of the output tensors, which the
        next inference overwrites, instead of copies. A result of more than 1 MB on a CUDA device is downloaded when it
        is first read, or before the request's next inference; the read raises OpError if the download fails. String
        outputs are ``U`` arrays, or ``S`` arrays without ``decode_strings``; both lose NULs at the end of a string, and
        ``decode_strings=None`` gives arrays of `bytes` objects, which lose nothing. Outputs of bf16 and f8 on the host
        are the bits as float16 and uint8, as in OpenVINO, or with ``ml_dtypes`` numbers, in dtypes of that package.

        On a CUDA device, values may be device arrays of CuPy, torch or any library that supports DLPack or
        ``__cuda_array_interface__``. An output that is bound to a `RemoteTensor` stays on the device: its result is the
        tensor's memory as a CuPy array.

        Raises: RuntimeError for inputs that do not fit the model and for errors of the inference, TypeError for values
        that cannot be inputs. The state is unchanged after any exception, including KeyboardInterrupt at any point.
        """
        inference, session, before, after = object(), self._session, None, None
        try:
            if session.is_forked or not self._owner.take(inference):
                self._begin(inference)
            before = session.state
            if self._last is not None and not self._last.has_ended:
                self._end_last()
            self._last, session.cancellation.requested = None, False
            after = session.infer(inputs, share_inputs)
            results = session.answer(share_outputs, decode_strings, ml_dtypes)
            if after is not before:
                session.state = after  # last, so that an exception before it leaves the state unchanged
            self._owner.release(inference)
            return results
        except BaseException:
            if self._owner.take(inference):  # also true if it still is the owner
                if before is not None and session.state is after:
                    session.state = before
                self._owner.release(inference)
            raise

    def start_async(self, inputs: Any = None, userdata: Any = None, share_inputs: bool = False) -> None:
        """Set inputs, see `infer`, and start an inference.

        ``userdata`` is passed to the callback. Read the outputs after `wait` has returned, or in the callback. If a
        signal handler interrupts the call, the inference may have been started.

        An inference that repeats an earlier one on a CUDA device is enqueued by this call. It ends in the thread that
        waits for it, unless there is a callback. Any other inference, and the callback, runs on a thread of the
        request, one after the other, also if the request is dropped. The thread ends when it has nothing to do.
        """
        if userdata is not None and self._callback is None:
            warnings.warn("There is no callback function to pass `userdata` into!", RuntimeWarning, 2)
        elif userdata is not None:
            self._check_idle()
            self._userdata = userdata
        if self._callback is None:
            self.start(inputs, share_inputs, None, Claim(), None)
        else:
            self.start(inputs, share_inputs, self._call_back, Claim(), self._watchers)

    def start(
        self,
        inputs: Any,
        share_inputs: bool,
        on_done: Callable[[BaseException | None], Any] | None,
        runner: Claim,
        watchers: Watchers | None,
    ) -> None:
        """Start an inference, after which the thread that ends it calls ``on_done`` with None or the error.

        An inference that repeats an earlier one is ended by the ``watchers``. Without them, it is `in_flight`
        afterwards, and ends when somebody waits for it. Any other inference runs on the request's thread.

        The inference takes the claim ``runner``. If `start` raises and the inference does not run, `CALLER` can take
        the claim. The inference may run nevertheless if a signal handler raised.
        """
        inference, last, in_flight = object(), None, None
        try:
            self._begin(inference)
            last = self._last
            if last is not None and not last.has_ended:
                self._end_last()
            self._session.cancellation.requested = False
            started = self._session.start(inputs, share_inputs)
            if not started.launched:
                watchers = self._watchers
            in_flight = InFlight(self._session, started, self._owner, inference, on_done, runner, watchers)
            self._last = in_flight
            if watchers is None:
                runner.take(inference)
            else:
                watchers.put(in_flight)
        except BaseException:
            if runner.take(CALLER):
                self._session.backend.abandon()  # the inference may have been enqueued
                if in_flight is not None:
                    self._last = last
                    in_flight.drop(None)
                self._owner.release(inference)
            raise

    def _call_back(self, error: BaseException | None) -> None:
        try:
            if error is None and self._callback is not None:
                self._callback(self._userdata)
        except Exception as e:
            raise RuntimeError(f"the callback raised {type(e).__name__}: {e}") from e
        finally:
            del self  # the error's traceback holds this frame

    def wait(self) -> None:
        """Wait for the inference that was started and its callback, and raise their errors.

        If a signal handler raises while `wait` waits, as for KeyboardInterrupt, the inference goes on. Another `wait`
        shows whether it succeeds and the state is the new one.
        """
        self._check_process()
        last = self._last
        try:
            if last is not None:
                last.wait()
        finally:
            del self, last  # the error's traceback holds this frame

    def wait_for(self, timeout: int) -> bool:
        """Wait at most ``timeout`` milliseconds. Return whether an inference was started and has ended, with its
        callback. Raises its error."""
        self._check_process()
        last = self._last
        try:
            if last is None or not last.wait_for(timeout / 1000):
                return False
            last.wait()
            return True
        finally:
            del self, last  # the error's traceback holds this frame

    @property
    def in_flight(self) -> InFlight | None:
        """The inference that was started and ends when somebody waits for it; None if there is none."""
        last = self._last
        return None if last is None or last.has_ended or last.is_watched else last

    def cancel(self) -> None:
        """Cancel the inference that runs or was started: `infer` or `wait` raises RuntimeError; the state is unchanged.

        The inference ends after its current step or iteration, on a CUDA device after its current graph.
        """
        last = self._last
        if last is None or not last.has_run():
            self._session.cancellation.requested = True

    def set_callback(self, callback: Callable[[Any], Any], userdata: Any = None) -> None:
        """Set ``callback(userdata)``, called after each asynchronous inference that succeeds, on the request's thread.

        `wait` raises an exception of the callback as RuntimeError.
        """
        self._check_idle()
        if not callable(callback):
            raise TypeError(f"a callback is callable, got {type(callback).__name__}")
        self._callback, self._userdata = callback, userdata

    @property
    def userdata(self) -> Any:
        """The argument that is passed to the callback."""
        return self._userdata

    def _begin(self, inference: object) -> None:
        self._check_process()
        if not self._owner.take(inference):
            self._end_reached()
            if not self._owner.take(inference):
                raise RuntimeError("Infer Request is busy")

    def _check_idle(self) -> None:
        self._check_process()
        if self._owner:
            self._end_reached()
            if self._owner:
                raise RuntimeError("Infer Request is busy")

    def _end_reached(self) -> None:
        """End the inference in flight, if the device has done its work."""
        in_flight = self.in_flight
        if in_flight is not None and in_flight.is_reached():
            in_flight.end()

    def _end_last(self) -> None:
        """Do what is left of the end of an inference that a signal handler has interrupted: the next one begins."""
        in_flight = self.in_flight
        if in_flight is not None:
            in_flight.end()

    def _check_process(self) -> None:
        """Drop the parent's running inference if this is a forked process. There, raise DeviceError for a request on a
        CUDA device."""
        if not self._session.is_forked:
            return
        self._session.continue_forked()
        if self._last is not None and not self._last.has_ended:
            self._last.drop(RuntimeError("the inference runs in the process that this one was forked from"))
        self._owner, self._watchers = Claim(), Watchers("ovgpu-request", one_by_one=True)

    # ---- results

    @property
    def results(self) -> OVDict:
        """Copies of the outputs, as `infer` returns them."""
        self._check_idle()
        return self._session.results(False, True)

    def _is_single_input(self) -> bool:
        """Return whether the model has one input. `openvino.utils.data_helpers` asks for it."""
        return len(self._session.inputs) == 1

    # ---- state

    def query_state(self) -> list[VariableState]:
        """Return the variables of this request."""
        self._check_idle()
        variables, initial = self._session.variables, self._session.initial
        return [VariableState(name, variables, initial, self._check_idle) for name in variables.all]

    def reset_state(self) -> None:
        """Reset every variable to its initial value."""
        self._check_idle()
        self._session.variables.handed_out.clear()
        self._session.variables.reset_all()

    # ---- profiling, plans and memory

    @property
    def latency(self) -> float:
        """The duration of the last inference in milliseconds."""
        return self._session.latency

    def get_profiling_info(self) -> list[ProfilingInfo]:
        """Return the steps of the last inference, with times if the model was compiled with ``enable_profiling``."""
        self._check_idle()
        return self._session.profiling_info()

    profiling_info = attribute(get_profiling_info)

    def timeline(self) -> list[Span]:
        """Return the start and end of the last inference's steps, on the host and on the device.

        Raises: RuntimeError unless the model was compiled with ``enable_profiling``.
        """
        self._check_idle()
        if self._session.profiler is None:
            raise RuntimeError("there is no timeline: compile the model with enable_profiling (PERF_COUNT)")
        return self._session.profiler.spans()

    def plan(self, *, times: bool = False) -> Plan:
        """Return the plan of the last inference.

        With ``times``, its steps are run again, ten times, and have the median of the seconds that each takes on the
        device. States keep their values.

        Raises: RuntimeError if there was no inference, if its memory was released, or if steps are to be timed after
        a state was set or reset.
        """
        self._check_idle()
        return self._session.plan(times)

    def _release_memory(self) -> None:
        """Free the memory of intermediate results. The next inference allocates it again."""
        self._check_idle()
        self._session.forget()

    def get_compiled_model(self) -> CompiledModel:
        """Return the compiled model as a new object, which does not share the private request of the original one.

        If several devices share the model's requests, it is the compiled model for the device of this request.
        """
        from ovgpu.api.compiled_model import CompiledModel

        return CompiledModel(self._session.compilation)

    def __repr__(self) -> str:
        compilation = self._session.compilation
        return f"<InferRequest:\n{compilation.inputs.listing()}\n{compilation.outputs.listing()}>"
