#!/bin/sh
# A C++ compiler whose programs end where they leave an array or their arithmetic is undefined (make test-sanitized).
exec g++ -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g "$@"
