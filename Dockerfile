# openqaic in a container: docker build -t openqaic . && docker run --rm openqaic info
#
# With a card: docker run --rm --device /dev/accel/accel0 -e QAIC_DEVICE=kmd openqaic info
FROM rust:1.95-bookworm AS rust

# Both images are of one Debian, and nothing is installed: no package has a version that could change.
FROM python:3.11-bookworm AS build
COPY --from=rust /usr/local/cargo /usr/local/cargo
COPY --from=rust /usr/local/rustup /usr/local/rustup
ENV CARGO_HOME=/usr/local/cargo RUSTUP_HOME=/usr/local/rustup PATH=/usr/local/cargo/bin:$PATH
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheel .

FROM python:3.11-slim-bookworm
COPY --from=build /wheel /wheel
RUN pip install --no-cache-dir "$(echo /wheel/openqaic-*.whl)[demo]" && rm -r /wheel && useradd --create-home --uid 1000 qaic
USER 1000
WORKDIR /home/qaic
ENTRYPOINT ["openqaic"]
CMD ["info"]
