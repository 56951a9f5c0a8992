# openqaic in a container: docker build -t openqaic . && docker run --rm openqaic info
#
# With a card: docker run --rm --device /dev/accel/accel0 -e QAIC_DEVICE=kmd openqaic info
FROM rust:1.95-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN python3 -m venv /build && /build/bin/pip wheel --no-deps --wheel-dir /wheel .

FROM python:3.11-slim-bookworm
COPY --from=build /wheel /wheel
RUN pip install --no-cache-dir "$(echo /wheel/openqaic-*.whl)[demo]" && rm -r /wheel && useradd --create-home --uid 1000 qaic
USER 1000
WORKDIR /home/qaic
ENTRYPOINT ["openqaic"]
CMD ["info"]
