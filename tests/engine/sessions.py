"""Sessions of streaming input: the turns of one request, each of which goes on where the turn before it stopped.

``AsyncLLM.generate`` takes such turns from an asynchronous generator, and sends them as here: one resumable request per
turn, all with the same id, and one that is not resumable at the end.
"""

from collections.abc import Callable
from typing import Any


def run(llm: Any, sessions: list[dict[str, Any]], sampling_params: Callable[[Any], Any]) -> list[dict[str, Any]]:
    """What every turn generated, session by session.

    A session has ``turns`` (``{"ids", "sampling"}``) and says whether they are ``queued``: all there from the start,
    or each sent when the turn before it is done.
    """
    engine = llm.llm_engine
    tasks = engine.get_supported_tasks()

    def send(session: int, turn: dict[str, Any], resumable: bool = True) -> None:
        prompt, params = {"prompt_token_ids": turn["ids"]}, sampling_params(turn["sampling"])
        made = engine.input_processor.process_inputs(
            f"session-{session}", prompt, params, supported_tasks=tasks, resumable=resumable
        )
        engine.engine_core.add_request(made)

    def end(session: int) -> None:
        send(session, sessions[session]["turns"][-1], resumable=False)

    made: list[list[dict[str, Any]]] = [[] for _ in sessions]
    for index, session in enumerate(sessions):
        for turn in session["turns"] if session["queued"] else session["turns"][:1]:
            send(index, turn)
        if session["queued"]:
            end(index)
    ids: list[list[int]] = [[] for _ in sessions]
    while any(len(turns) < len(session["turns"]) for turns, session in zip(made, sessions, strict=True)):
        step = engine.engine_core.get_output()
        if step.scheduler_stats is not None:
            engine.logger_manager.record(step.scheduler_stats, None)
        for output in step.outputs:
            index = int(output.request_id.removeprefix("session-"))
            ids[index] += output.new_token_ids
            if output.finish_reason is None:
                continue
            made[index].append({"ids": ids[index], "reason": str(output.finish_reason)})
            ids[index] = []
            if not sessions[index]["queued"]:
                if len(made[index]) < len(sessions[index]["turns"]):
                    send(index, sessions[index]["turns"][len(made[index])])
                else:
                    end(index)
    return [turn for turns in made for turn in turns]
