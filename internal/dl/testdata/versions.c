// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// A function in two versions, as libibverbs has; the second is the default.
int first(void) { return 1; }
int second(void) { return 2; }

__asm__(".symver first,which@PROBE_1");
__asm__(".symver second,which@@PROBE_2");
