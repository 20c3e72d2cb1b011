# Scheduler, workers and client of docker-compose.yml: Dask with otel_worker from this tree, in the versions that CI tests.
FROM python:3.11-slim

# What pyproject.toml asks for, in a layer of its own: a change of our code does not install it again.
WORKDIR /src
COPY pyproject.toml tests/constraints/newest.txt ./
RUN python -c "import tomllib; of = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
    print(*of['dependencies'], *of['optional-dependencies']['instruments'], 'dask[array]', 'lz4', sep='\n')" > needs.txt \
 && pip install --no-cache-dir --constraint newest.txt --requirement needs.txt \
 && useradd --create-home --uid 1000 dask \
 && install --directory --owner dask /scratch

COPY README.md LICENSE ./
COPY otel_worker otel_worker
RUN pip install --no-cache-dir --no-deps .

COPY examples collector/wait_for.py /examples/
USER dask
WORKDIR /home/dask
CMD ["dask", "--help"]
