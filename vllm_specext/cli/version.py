"""``vllm-specext --version``: our version and the installed vLLM's."""

import typer

import vllm_specext


def show_version(asked: bool) -> None:
    """Print one line and end the command, if ``asked``. Neither torch nor vLLM is imported."""
    if not asked:
        return
    from vllm_specext.engine.changes.guard import installed_vllm

    vllm = installed_vllm()
    typer.echo(f"vllm-specext {vllm_specext.__version__}, {f'vLLM {vllm}' if vllm else 'vLLM is not installed'}")
    raise typer.Exit
