// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
)

// schemaPattern is the form of every schema name: railbond.<what>/<version>.
const schemaPattern = `^railbond\.[a-z0-9_.]+/[1-9][0-9]*$`

// WriteJSON writes v to w as indented JSON with a final newline. v must be an object with a field "schema" of the form
// "railbond.ep.check/1", so that a reader can tell what it got and a change of meaning can be seen; other values are
// refused and nothing is written. Field names carry their unit: _us, _bytes, _gb_per_s, _gbit_per_s.
func WriteJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("cannot write %T as JSON: %w", v, err)
	}
	if err := checkSchema(b.Bytes()); err != nil {
		return fmt.Errorf("cannot write %T as JSON: %w", v, err)
	}
	_, err := w.Write(b.Bytes())
	return err
}

func checkSchema(doc []byte) error {
	var head struct {
		Schema *string `json:"schema"`
	}
	if err := json.Unmarshal(doc, &head); err != nil || head.Schema == nil {
		return fmt.Errorf(`it has no text field "schema" at its top`)
	}
	if !regexp.MustCompile(schemaPattern).MatchString(*head.Schema) {
		return fmt.Errorf("schema %q does not match %s", *head.Schema, schemaPattern)
	}
	return nil
}
