#!/usr/bin/env bash
# Builds the wheel, installs it into a fresh environment with the locked requirements, and serves
# a request through add_middleware in an application that has folders named like ours.
set -euo pipefail
cd "$(dirname "$0")/.."
export PIP_DISABLE_PIP_VERSION_CHECK=1
python="$PWD/.venv/bin/python"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

# From a copy: a build leaves folders behind that an editable install would trip over.
mkdir "$scratch/source"
cp -r pyproject.toml README.md LICENSE NOTICE middleware cache router policies bench "$scratch/source"
"$python" -m build --wheel --outdir "$scratch/dist" "$scratch/source" >"$scratch/build.log" 2>&1 ||
  { cat "$scratch/build.log"; exit 1; }

"$python" -m venv "$scratch/venv"
fresh="$scratch/venv/bin"
"$fresh/python" -m pip install -qq --require-hashes -r requirements.lock
"$fresh/python" -m pip install -qq --no-deps "$scratch"/dist/tierway-*.whl
"$fresh/python" -m pip check

cp -r tests/wheel_app "$scratch/app"
cp -r tests/plugin_app "$scratch/plugin"
cd "$scratch/app"
unset PYTHONPATH
version="$("$fresh/python" -c 'import importlib.metadata as m; print(m.version("tierway"))')"
[ "$("$fresh/tierway" --version)" = "tierway $version" ]
"$fresh/python" check.py

# A policy of another distribution, installed beside the wheel and named in a file.
"$fresh/python" -m pip install -qq --no-deps "$scratch/plugin"
printf 'plugins: [tierway-near]\ntiers: {small: {policy: near, options: {zone: a}}}\n' >plugin.yaml
"$fresh/tierway" check --config plugin.yaml >/dev/null
