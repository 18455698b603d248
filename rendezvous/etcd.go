// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// leaseTTL is how long a record outlives a rank 0 that died, in seconds.
const leaseTTL = 15

// EtcdError is an answer of etcd's JSON gateway that is no success.
type EtcdError struct {
	URL    string
	Status int // HTTP
	Text   string
}

func (e *EtcdError) Error() string {
	return fmt.Sprintf("etcd at %s answers status %d (%s): want etcd 3.4 or later with its JSON gateway, without authentication", e.URL, e.Status, e.Text)
}

// etcdDirectory publishes under one key of etcd v3, through the JSON gateway. Bytes are
// base64 there, which is how encoding/json writes them, and 64-bit numbers are strings.
type etcdDirectory struct {
	endpoints []string
	key       []byte
	client    *http.Client
	log       func(string, ...any)
}

// useEtcd reads an endpoint of method etcd: http://host:port[,http://host:port...].
func (p *plan) useEtcd(endpoint string) error {
	d := &etcdDirectory{key: []byte("/railbond/" + fileName(p.job) + "/rendezvous"), log: p.log}
	for part := range strings.SplitSeq(endpoint, ",") {
		if rest, ok := strings.CutPrefix(part, "etcd://"); ok {
			part = "http://" + rest
		}
		u, err := url.Parse(strings.TrimSpace(part))
		if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
			return &VariableError{Name: EnvEndpoint, Value: endpoint, Want: "http://host:port[,http://host:port...] of etcd"}
		}
		d.endpoints = append(d.endpoints, u.Scheme+"://"+u.Host)
	}
	// Few and small requests: no connection is kept, so none is left behind.
	d.client = &http.Client{Timeout: dialTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
	p.dir = d
	return nil
}

func (d *etcdDirectory) where() string {
	return "etcd " + strings.Join(d.endpoints, ",") + " key " + string(d.key)
}

// etcdKV is one key of a range answer.
type etcdKV struct {
	Value       []byte `json:"value"`
	ModRevision string `json:"mod_revision"`
}

func (d *etcdDirectory) lookup(ctx context.Context) (*record, error) {
	var out struct {
		KVs []etcdKV `json:"kvs"`
	}
	if err := d.call(ctx, "/v3/kv/range", map[string]any{"key": d.key}, &out); err != nil {
		return nil, err
	}
	if len(out.KVs) == 0 {
		return nil, errNotPublished
	}
	rec, err := parseRecord(out.KVs[0].Value)
	if err != nil {
		return nil, err
	}
	rec.revision = out.KVs[0].ModRevision
	return rec, nil
}

// publish puts the record under a lease, if the key is still as old says.
func (d *etcdDirectory) publish(ctx context.Context, rec, old *record) (func(context.Context) error, error) {
	lease, err := d.put(ctx, rec, old)
	if err != nil {
		return nil, err
	}
	k := &etcdKeeper{dir: d, rec: rec, lease: lease}
	keepCtx, cancel := context.WithCancel(context.Background())
	k.wg.Go(func() { k.run(keepCtx) })
	return func(ctx context.Context) error {
		cancel()
		k.wg.Wait()
		return d.revoke(ctx, k.lease)
	}, nil
}

// put grants a lease and writes the record under it in one transaction.
func (d *etcdDirectory) put(ctx context.Context, rec, old *record) (lease string, err error) {
	var grant struct {
		ID string `json:"ID"`
	}
	if err := d.call(ctx, "/v3/lease/grant", map[string]any{"TTL": leaseTTL}, &grant); err != nil {
		return "", err
	}
	value, err := json.Marshal(rec)
	if err != nil {
		return "", err
	}
	compare := map[string]any{"key": d.key, "result": "EQUAL", "target": "CREATE", "create_revision": "0"}
	if old != nil {
		compare = map[string]any{"key": d.key, "result": "EQUAL", "target": "MOD", "mod_revision": old.revision}
	}
	put := map[string]any{"request_put": map[string]any{"key": d.key, "value": value, "lease": grant.ID}}
	var out struct {
		Succeeded bool `json:"succeeded"`
	}
	err = d.call(ctx, "/v3/kv/txn", map[string]any{"compare": []any{compare}, "success": []any{put}}, &out)
	if err == nil && !out.Succeeded {
		err = errTaken
	}
	if err != nil {
		return "", errors.Join(err, d.revoke(ctx, grant.ID))
	}
	return grant.ID, nil
}

// revoke ends a lease, and the key under it with it.
func (d *etcdDirectory) revoke(ctx context.Context, lease string) error {
	return d.call(ctx, "/v3/lease/revoke", map[string]any{"ID": lease}, &struct{}{})
}

// etcdKeeper keeps a published record's lease alive.
type etcdKeeper struct {
	dir   *etcdDirectory
	rec   *record
	lease string
	wg    sync.WaitGroup
}

func (k *etcdKeeper) run(ctx context.Context) {
	tick := time.NewTicker(leaseTTL * time.Second / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := k.refresh(ctx); err != nil && ctx.Err() == nil {
				k.dir.log("rendezvous: %s: lease: %v", k.dir.where(), err)
			}
		}
	}
}

// refresh renews the lease; where it has run out, say after a long pause of this
// process, the record is put again unless another job has taken the key.
func (k *etcdKeeper) refresh(ctx context.Context) error {
	var out struct {
		Result struct {
			TTL string `json:"TTL"`
		} `json:"result"`
	}
	err := k.dir.call(ctx, "/v3/lease/keepalive", map[string]any{"ID": k.lease}, &out)
	if err != nil || (out.Result.TTL != "" && out.Result.TTL != "0") {
		return err
	}
	lease, err := k.dir.put(ctx, k.rec, nil)
	if err == nil {
		k.lease = lease
	}
	return err
}

// call posts one request to the first endpoint that answers.
func (d *etcdDirectory) call(ctx context.Context, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range d.endpoints {
		err := d.post(ctx, e+path, body, out)
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (d *etcdDirectory) post(ctx context.Context, url string, body []byte, out any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := d.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 2*maxRecord))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return &EtcdError{URL: url, Status: resp.StatusCode, Text: strings.TrimSpace(string(b[:min(len(b), 200)]))}
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("etcd at %s: answer is no JSON: %w", url, err)
	}
	return nil
}
