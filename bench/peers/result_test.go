// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"errors"
	"strings"
	"testing"
)

const rankFigures = `{"rank":0,"min_us":1,"median_us":2,"p99_us":3,"max_us":4,"logical_bytes":8,"wire_bytes":0,"gb_per_s":0.1}`

const goodResult = `{"schema":"railbond-mpi-peer/1","transport":{"mpi":"Open MPI v4.1.4","single_copy":"cma","cma_probe":"ok"},` +
	`"mode":"ll","convention":"barrier","ranks":1,"hidden":4,"topk":1,"experts":1,"max_tokens":1,"warmup":1,"iters":3,"tokens":[1],` +
	`"operations":[{"name":"dispatch","variant":"dedup","samples":2,"max_rank_median_us":2.5,"logical_bytes":8,"gb_per_s":0.1,"ranks":[` + rankFigures + `]},` +
	`{"name":"combine","variant":"dedup","samples":2,"max_rank_median_us":7,"logical_bytes":8,"gb_per_s":0.1,"ranks":[` + rankFigures + `]},` +
	`{"name":"dispatch","variant":"flat","samples":2,"max_rank_median_us":3.5,"logical_bytes":8,"gb_per_s":0.1,"ranks":[` + rankFigures + `]},` +
	`{"name":"combine","variant":"flat","samples":2,"max_rank_median_us":6,"logical_bytes":8,"gb_per_s":0.1,"ranks":[` + rankFigures + `]}],` +
	`"validated":false,"valid":false,"corrupted":0,"difference":""}` + "\n"

func TestDecodeResultAndBest(t *testing.T) {
	r, err := DecodeResult([]byte(goodResult))
	if err != nil {
		t.Fatal(err)
	}
	times, variants, err := r.Best()
	if err != nil || times[dispatch] != 2.5 || times[combine] != 6 || variants[dispatch] != "dedup" || variants[combine] != "flat" {
		t.Errorf("best %v %v, %v", times, variants, err)
	}
	r.Operations = r.Operations[:1]
	var decode *DecodeError
	if _, _, err := r.Best(); !errors.As(err, &decode) || !strings.Contains(err.Error(), "no combine") {
		t.Errorf("error %v for a result without combine", err)
	}
}

func TestDecodeResultRefuses(t *testing.T) {
	for name, c := range map[string]struct{ old, text, field string }{
		"nothing":        {goodResult, "", ""},
		"trailing text":  {"\n", "\n{}", ""},
		"unknown field":  {`"iters"`, `"iterations"`, ""},
		"schema":         {"peer/1", "peer/2", "schema"},
		"ranks":          {`"ranks":1`, `"ranks":0`, "ranks"},
		"too many ranks": {`"ranks":1`, `"ranks":5000`, "ranks"},
		"tokens":         {`"tokens":[1]`, `"tokens":[1,2]`, "tokens"},
		"operations":     {goodResult[strings.Index(goodResult, `{"name"`):strings.Index(goodResult, `],"validated"`)], "", "operations"},
		"name":           {`"name":"combine"`, `"name":"reduce"`, "operations[1]"},
		"negative":       {`"max_rank_median_us":7`, `"max_rank_median_us":-7`, "operations[1]"},
		"no figures":     {"[" + rankFigures + "]", "[]", "operations[0]"},
		"order":          {`"min_us":1`, `"min_us":9`, "operations[0]"},
		"rank":           {`"rank":0`, `"rank":1`, "operations[0]"},
	} {
		text := strings.Replace(goodResult, c.old, c.text, 1)
		_, err := DecodeResult([]byte(text))
		var decode *DecodeError
		if text == goodResult || !errors.As(err, &decode) || decode.Field != c.field {
			t.Errorf("%s: error %v, want *DecodeError for field %q", name, err, c.field)
		}
	}
	if _, err := DecodeResult(make([]byte, maxOutput+1)); !errors.Is(err, errTooLong) {
		t.Errorf("error %v for too much output", err)
	}
}

func FuzzDecodeResult(f *testing.F) {
	f.Add([]byte(goodResult))
	f.Add([]byte(`{"schema":"railbond-mpi-peer/1","ranks":1,"tokens":[0],"operations":[{},{}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := DecodeResult(data)
		if err != nil {
			return
		}
		if len(r.Tokens) != r.Ranks || len(r.Operations) > maxOperations {
			t.Errorf("accepted %+v", r)
		}
		if times, _, err := r.Best(); err == nil && (times[dispatch] < 0 || times[combine] < 0) {
			t.Errorf("best times %v", times)
		}
	})
}

func TestDecodeRailbond(t *testing.T) {
	const good = `{"schema":"x","operations":[{"name":"layout"},{"name":"dispatch","max_rank_median_us":10.5,"more":1},{"name":"combine","max_rank_median_us":20}]}`
	times, err := DecodeRailbond([]byte(good))
	if err != nil || times[dispatch] != 10.5 || times[combine] != 20 || len(times) != 2 {
		t.Fatalf("%v, %v", times, err)
	}
	for _, bad := range [][2]string{{"10.5", "0"}, {"10.5", "-1"}, {"10.5", "null"}, {"10.5", `"x"`}, {`"combine"`, `"dispatch"`}, {`"combine"`, `"other"`}, {"]}", "]}]"}} {
		var decode *DecodeError
		if times, err := DecodeRailbond([]byte(strings.Replace(good, bad[0], bad[1], 1))); !errors.As(err, &decode) {
			t.Errorf("%v: %v, %v, want *DecodeError", bad, times, err)
		}
	}
}

func FuzzDecodeRailbond(f *testing.F) {
	f.Add([]byte(`{"operations":[{"name":"dispatch","max_rank_median_us":1},{"name":"combine","max_rank_median_us":2}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if times, err := DecodeRailbond(data); err == nil && (len(times) != 2 || !(times[dispatch] > 0) || !(times[combine] > 0)) {
			t.Errorf("accepted %v", times)
		}
	})
}
