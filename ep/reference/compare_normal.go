// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package reference

import "github.com/railbond/railbond/lowp"

// CompareCombined returns nil if got is want, both combined_x [T, hidden] of
// rank, bit for bit but for NaNs, which are all alike; else a *MismatchError.
func CompareCombined(rank, hidden int, got, want []lowp.BF16) error {
	return compareTokens("combined_x", rank, hidden, got, want, sameSum, bf16Value)
}

// CompareCombinedWeights does the same for combined_topk_weights [T, topK],
// every bit.
func CompareCombinedWeights(rank, topK int, got, want []float32) error {
	return compareTokens("combined_topk_weights", rank, topK, got, want, sameBits, floatValue)
}

// compareTokens compares [T, width] tensors whose rows are tokens of rank.
func compareTokens[T any](what string, rank, width int, got, want []T, same func(a, b T) bool, show func(T) Value) error {
	t := newTensor(what, rank)
	if len(got) != len(want) || width < 1 || len(want)%width != 0 {
		t.wrongLength(len(got), len(want))
		return t.err()
	}
	for token := range len(want) / width {
		t.at.Token = token
		compareRow(t, row(got, token, width), row(want, token, width), same, show)
	}
	return t.err()
}

// CompareLayout returns nil if got is want, the layout of rank's tokens over
// ranks; else a *MismatchError.
func CompareLayout(rank, ranks int, got, want *LayoutResult) error {
	if err := compareVector("num_tokens_per_rank", rank, got.NumTokensPerRank, want.NumTokensPerRank, equal, intValue); err != nil {
		return err
	}
	if err := compareVector("num_tokens_per_expert", rank, got.NumTokensPerExpert, want.NumTokensPerExpert, equal, intValue); err != nil {
		return err
	}
	return compareTokens("is_token_in_rank", rank, ranks, got.IsTokenInRank, want.IsTokenInRank, equal, boolValue)
}

func compareVector[T any](what string, rank int, got, want []T, same func(a, b T) bool, show func(T) Value) error {
	t := newTensor(what, rank)
	compareRow(t, got, want, same, show)
	return t.err()
}

// Compare returns nil if got is recv bit for bit, or a *MismatchError that names
// the first difference of the first tensor that has one. Rank, Hidden and TopK
// of got are not looked at.
func (recv *NormalRecv) Compare(got *NormalRecv) error {
	checks := []func(*NormalRecv) error{
		recv.compareN, recv.comparePrefix, recv.compareCounts, recv.compareSrcIdx,
		recv.compareIdx, recv.compareWeights, recv.compareX, recv.compareQ, recv.compareScales,
	}
	for _, check := range checks {
		if err := check(got); err != nil {
			return err
		}
	}
	return nil
}

func (recv *NormalRecv) compareN(got *NormalRecv) error {
	return compareVector("number of received rows", recv.Rank, []int{got.N}, []int{recv.N}, equal, intValue)
}

// comparePrefix places row i, column j of the matrix at row i, column j.
func (recv *NormalRecv) comparePrefix(got *NormalRecv) error {
	t := newTensor("rank_prefix_matrix", recv.Rank)
	if len(got.RankPrefixMatrix) != len(recv.RankPrefixMatrix) {
		t.wrongLength(len(got.RankPrefixMatrix), len(recv.RankPrefixMatrix))
		return t.err()
	}
	for i, want := range recv.RankPrefixMatrix {
		t.at.Row = i
		compareRow(t, got.RankPrefixMatrix[i], want, equal, intValue)
	}
	return t.err()
}

func (recv *NormalRecv) compareCounts(got *NormalRecv) error {
	t := newTensor("num_recv_tokens_per_expert", recv.Rank)
	compareRow(t, got.NumRecvTokensPerExpert, recv.NumRecvTokensPerExpert, equal, intValue)
	if t.first != nil && t.first.Column >= 0 {
		t.first.Expert = recv.Rank*len(recv.NumRecvTokensPerExpert) + t.first.Column
	}
	return t.err()
}

func (recv *NormalRecv) compareSrcIdx(got *NormalRecv) error {
	return compareReceived(recv, "recv_src_idx", 1, got.SrcIdx, recv.SrcIdx, equal, intValue)
}

func (recv *NormalRecv) compareIdx(got *NormalRecv) error {
	return compareReceived(recv, "recv_topk_idx", recv.TopK, got.RecvTopKIdx, recv.RecvTopKIdx, equal, intValue)
}

// compareWeights looks at received rows only: past them the contract only says
// that ids are -1.
func (recv *NormalRecv) compareWeights(got *NormalRecv) error {
	received := func(weights []float32) []float32 { return weights[:min(len(weights), recv.N*recv.TopK)] }
	return compareReceived(recv, "recv_topk_weights", recv.TopK,
		received(got.RecvTopKWeights), received(recv.RecvTopKWeights), sameBits, floatValue)
}

func (recv *NormalRecv) compareX(got *NormalRecv) error {
	return compareReceived(recv, "recv_x", recv.Hidden, got.X, recv.X, equal, bf16Value)
}

func (recv *NormalRecv) compareQ(got *NormalRecv) error {
	return compareReceived(recv, "recv_x", recv.Hidden, got.Q, recv.Q, equal, e4m3Value)
}

func (recv *NormalRecv) compareScales(got *NormalRecv) error {
	return compareReceived(recv, "recv_x_scales", lowp.Groups(recv.Hidden), got.Scales, recv.Scales, sameBits, floatValue)
}

// compareReceived compares [n, width] tensors whose rows are received rows.
func compareReceived[T any](recv *NormalRecv, what string, width int, got, want []T, same func(a, b T) bool, show func(T) Value) error {
	t := newTensor(what, recv.Rank)
	if len(got) != len(want) {
		t.wrongLength(len(got), len(want))
		return t.err()
	}
	for i := range len(want) / max(1, width) {
		t.at.Row = i
		t.at.SourceRank, t.at.Token = recv.source(i)
		compareRow(t, row(got, i, width), row(want, i, width), same, show)
	}
	return t.err()
}

// source returns where row i came from, -1 and -1 for rows past the received.
func (recv *NormalRecv) source(i int) (rank, token int) {
	for source, sums := range recv.RankPrefixMatrix {
		if i < int(sums[recv.Rank]) {
			return source, int(recv.SrcIdx[i])
		}
	}
	return -1, -1
}
