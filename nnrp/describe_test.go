package nnrp

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDescribe: every golden message becomes valid JSON; the layouts add up to the sizes of the specification.
func TestDescribe(t *testing.T) {
	size := func(list []Field) int {
		last := list[len(list)-1]
		return last.Offset + last.Size
	}
	require.Equal(t, HeaderLen, size(headerFields))
	for typ, list := range metaFields {
		require.Equal(t, typ.MetaLen(), size(list), typ)
	}
	require.Equal(t, TensorSubmitLen, size(tensorSubmitFields))
	require.Equal(t, TensorResultLen, size(tensorResultFields))
	require.Equal(t, SectionDescLen, size(sectionFields))
	require.Equal(t, TensorClampLen, size(clampFields))
	lines := map[string]map[string]any{}
	for _, c := range golden {
		wire := hx(c.bytes)
		line, err := Describe(17, wire, c.msg)
		require.NoError(t, err)
		var got map[string]any
		require.NoError(t, json.Unmarshal(line, &got), "%s", line)
		require.EqualValues(t, 17, got["offset"])
		require.Equal(t, "NNRP", got["magic"])
		require.EqualValues(t, c.msg.Type(), got["msg_type"])
		require.NotContains(t, string(line), "token\"")
		require.NotContains(t, string(line), "746f6b656e", "the auth_block is secret")
		lines[c.name] = got
	}
	submit := lines["frame submit, camera, raw index, two sections, codec table"]
	require.Equal(t, "cafebabe01", submit["camera_block"])
	require.Equal(t, []any{9.0, 2.0, 65535.0}, submit["tile_ids"])
	require.EqualValues(t, 0x2b, submit["metadata"].(map[string]any)["profile_block_bytes"])
	require.EqualValues(t, 0xabcd, submit["tensor_submit_block"].(map[string]any)["reserved0"])
	second := submit["tensor_sections"].([]any)[1].(map[string]any)
	require.EqualValues(t, 0xcafe, second["reserved"])
	require.Equal(t, []any{2.0, 0.0, 3.0}, second["length_table"])
	require.Equal(t, "server_busy", lines["error"]["error"])
	require.EqualValues(t, 768, lines["session patch"]["tensor_profile_patch_block"].(map[string]any)["max_height"])
	require.EqualValues(t, 0x4001, lines["client hello"]["control_extension_block"].([]any)[0].(map[string]any)["ext_type"])
}
