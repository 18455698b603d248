// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lowp holds the low-precision number formats of mixture-of-experts
// traffic, bfloat16, fp8 e4m3fn and UE8M0 scales, and the row kernels that
// dispatch and combine run on the host: QuantizeRow, DequantizeRow, WeightedSum.
package lowp
