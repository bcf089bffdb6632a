# Entwine for CPUs: library, headers, tool, MPI module.
#
#     docker build --build-arg COMMIT=$(git describe --always --dirty) -t entwine .
#     docker run --rm entwine                    # checks that the container may do what ranks need
#     docker run --rm entwine bench --suite smoke
#
# Ranks share memory through memfd_create and UNIX sockets, so no --shm-size or --ipc is needed.
FROM debian:bookworm-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends \
        gcc libc6-dev cmake make pkg-config libjansson-dev libopenmpi-dev \
    && rm -rf /var/lib/apt/lists/*
COPY . /source
ARG COMMIT=unknown
RUN cmake -S /source -B /build -DCMAKE_BUILD_TYPE=Release -DEW_CUDA=OFF -DEW_COMMIT="$COMMIT" \
    && cmake --build /build --target tools --parallel \
    && DESTDIR=/staged cmake --install /build

FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends \
        gcc libc6-dev pkg-config libjansson4 libblis4 openmpi-bin libopenmpi-dev \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /staged/ /
# mpirun refuses to run as root.
RUN ldconfig && useradd --create-home entwine
USER entwine
WORKDIR /home/entwine
RUN entwine doctor
ENTRYPOINT ["entwine"]
CMD ["doctor"]
